// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds arbitrary bytes to the reader of snapshots, as they are, and with their checksums and sizes made
// right, so that what lies behind those is reached.

#include "base/checksum.hpp"
#include "store/snapshot_reader.hpp"

#include <cstring>

using namespace gpu_sleep;

namespace {

/// Takes everything, as long as it is not too much.
class AnySink final : public store::ChunkSink {
public:
    [[nodiscard]] Result<std::span<std::byte>> space(const store::ChunkPlace& place) override {
        content_.resize(place.bytes);
        return std::span<std::byte>(content_);
    }
    [[nodiscard]] Result<void> deliver(const store::ChunkPlace&, std::span<const std::byte>) override {
        return {};
    }

private:
    std::vector<std::byte> content_;
};

void store_number(std::vector<std::byte>& file, std::size_t at, std::uint64_t value) {
    std::memcpy(&file[at], &value, sizeof(value));
}

std::uint64_t number_at(const std::vector<std::byte>& file, std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, &file[at], sizeof(value));
    return value;
}

/// Makes the preamble fit the file. False where that would not get further.
bool repair(std::vector<std::byte>& file) {
    constexpr std::size_t k_header_bytes_at = 24;
    constexpr std::size_t k_file_bytes_at = 32;
    constexpr std::size_t k_header_checksum_at = 40;
    constexpr std::size_t k_checksum_at = 56;
    if (file.size() < store::k_preamble_bytes) return false;
    const auto header_bytes = number_at(file, k_header_bytes_at);
    if (header_bytes < store::k_preamble_bytes || header_bytes > file.size()) return false;
    const std::span<const std::byte> header(file.data(), static_cast<std::size_t>(header_bytes));
    store_number(file, k_file_bytes_at, file.size());
    store_number(file, k_header_checksum_at, xxh64(header.subspan(store::k_preamble_bytes)));
    store_number(file, k_checksum_at, xxh64(header.first(k_checksum_at)));
    return true;
}

void read(std::span<const std::byte> bytes) {
    UniqueFd fd(::memfd_create("snapshot_fuzz", MFD_CLOEXEC));
    if (!fd || ::write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) return;
    const auto reader = store::SnapshotReader::open(std::move(fd));
    if (!reader) return;
    AnySink sink;
    store::SnapshotReadOptions options;
    options.threads = 1;
    options.under_way = 1;
    options.io = store::IoKind::threads;
    static_cast<void>(reader->read(sink, options));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    read(bytes);
    std::vector<std::byte> file(bytes.begin(), bytes.end());
    if (repair(file)) read(file);
    return 0;
}
