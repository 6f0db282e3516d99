// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Snapshots for tests: contents in memory, and whole snapshots made of them.

#pragma once

#include "base/guard.hpp"
#include "store/file_store.hpp"
#include "store/snapshot_reader.hpp"
#include "support/catch.hpp"
#include "support/weights.hpp"

namespace gpu_sleep::test {

/// Beyond what the kernel gives out, so that it is nobody's.
inline constexpr ProcessIdentity k_nobody{0x7FFFFFF0, 99};

/// A scratch directory, opened for snapshots.
[[nodiscard]] inline std::shared_ptr<const store::SnapshotDirectory> opened(const Scratch& scratch) {
    const auto directory = store::SnapshotDirectory::open(scratch.path());
    REQUIRE(directory);
    return *directory;
}

/// Extents with their contents, as a source and as a sink that compares.
class MemoryContents : public store::ChunkSource, public store::ChunkSink {
public:
    MemoryContents() = default;
    MemoryContents(std::string tag, ByteVector bytes) { add(std::move(tag), std::move(bytes)); }
    void add(std::string tag, ByteVector bytes) {
        description.extents.push_back({0x7f0000000000 + 0x100000000 * contents_.size(), bytes.size(),
                                       std::move(tag), static_cast<int>(contents_.size() % 2)});
        contents_.push_back(std::move(bytes));
    }

    [[nodiscard]] Result<std::span<const std::byte>> take(const store::ChunkPlace& place) override {
        if (place.number == fails_at) return make_error(ErrorCode::driver_failed, "no contents");
        const std::lock_guard lock(mutex_);
        CHECK(out_.insert(place.number).second);
        most_out = std::max(most_out, out_.size());
        return bytes_of(place);
    }
    void release(const store::ChunkPlace& place) noexcept override {
        const std::lock_guard lock(mutex_);
        out_.erase(place.number);
    }
    /// Whether all that was taken was released.
    [[nodiscard]] bool is_quiet() const { return out_.empty(); }

    [[nodiscard]] Result<std::span<std::byte>> space(const store::ChunkPlace& place) override {
        if (place.number == fails_at) return make_error(ErrorCode::driver_failed, "no space");
        spaces_.emplace_back(place.bytes, std::byte{0xEE});
        ++waiting_;
        most_out = std::max(most_out, waiting_);
        return std::span<std::byte>(spaces_.back());
    }
    [[nodiscard]] Result<void> deliver(const store::ChunkPlace& place,
                                       std::span<const std::byte> content) override {
        CHECK(are_equal(content, bytes_of(place)));
        if (!delivered.empty()) CHECK(delivered.back() < place.number);
        delivered.push_back(place.number);
        --waiting_;
        return {};
    }

    store::SnapshotDescription description{{}, {}, {4242, 123456}, ::geteuid(), {}, boot_id()};
    std::size_t fails_at = SIZE_MAX; ///< chunk
    std::size_t most_out = 0;
    std::vector<std::size_t> delivered;

protected:
    [[nodiscard]] std::span<const std::byte> bytes_of(const store::ChunkPlace& place) const {
        return std::span<const std::byte>(contents_[place.extent])
            .subspan(static_cast<std::size_t>(place.offset), place.bytes);
    }

private:
    std::vector<ByteVector> contents_;
    std::mutex mutex_; ///< guards those that are out
    std::set<std::size_t> out_;
    std::deque<ByteVector> spaces_;
    std::size_t waiting_ = 0;
};

/// Weights of several kinds, among them extents shorter than a page and longer than a chunk.
class SampleContents final : public MemoryContents {
public:
    SampleContents() {
        add("weights", normal_bf16(5 * k_mib / 2 + 3));
        add("kv_cache", random_bytes(4 * k_mib + 4096));
        add("default", random_bytes(77));
        add("weights", normal_e4m3(100'000));
        add("scales", normal_fp32(30'001));
        add("zeros", ByteVector(9 * k_mib));
    }
};

struct WriteOptions : store::CodingOptions, store::SnapshotWriteOptions {};

/// Writes what `source` has of `description` to a new file in `directory`.
[[nodiscard]] inline Result<store::Snapshot>
write_snapshot(std::shared_ptr<const store::SnapshotDirectory> directory,
               store::SnapshotDescription description, store::ChunkSource& source,
               const WriteOptions& options = {}) {
    return guarded([&]() -> Result<store::Snapshot> {
        const auto places = store::places_of(description.extents);
        const auto writer = GPU_SLEEP_TRY(
            store::SnapshotWriter::create(std::move(directory), std::move(description), options));
        const auto put = [&](const store::ChunkPlace& place, const store::CodedChunk& chunk,
                             store::ChunkDone done, const std::atomic<bool>& has_failed) {
            return writer->put(place, chunk, std::move(done), has_failed);
        };
        GPU_SLEEP_TRY(store::encode_all(places, source, put, options));
        return writer->finish();
    });
}

/// Options for two threads.
[[nodiscard]] inline WriteOptions small_write(store::IoKind io = store::IoKind::automatic) {
    WriteOptions options;
    options.threads = 2;
    options.io = io;
    return options;
}

/// A snapshot of them in `directory`, or why there is none.
[[nodiscard]] inline auto try_to_write(const Scratch& directory, MemoryContents& contents,
                                       const WriteOptions& options = small_write()) {
    return write_snapshot(opened(directory), contents.description, contents, options);
}

/// The same, which must not fail.
[[nodiscard]] inline auto written(const Scratch& directory, MemoryContents& contents,
                                  const WriteOptions& options = small_write()) {
    auto snapshot = try_to_write(directory, contents, options);
    REQUIRE(snapshot);
    return snapshot;
}

[[nodiscard]] inline store::SnapshotReadOptions small_read(store::IoKind io = store::IoKind::automatic) {
    store::SnapshotReadOptions options;
    options.threads = 2;
    options.io = io;
    return options;
}

/// Reads a file of these bytes. Returns the first error.
[[nodiscard]] inline Result<void> read_all(const std::filesystem::path& path, MemoryContents& contents) {
    contents.delivered.clear();
    const auto reader = store::SnapshotReader::open(path);
    if (!reader) return reader.error();
    return reader->read(contents, small_read());
}

[[nodiscard]] inline ByteVector read_file(const std::filesystem::path& path) {
    ByteVector bytes(std::filesystem::file_size(path));
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    CHECK(file);
    return bytes;
}

inline void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

} // namespace gpu_sleep::test
