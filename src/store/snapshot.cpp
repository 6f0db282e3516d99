// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The header: preamble, JSON, rows of chunks. What the JSON says is in snapshot_description.cpp.

#include "store/snapshot.hpp"

#include "base/checksum.hpp"
#include "base/text.hpp"

#include <array>
#include <cstring>

namespace gpu_sleep::store {
namespace {

constexpr std::string_view k_magic = "GPU-SLEEP-SNAP\r\n"; // sixteen characters

/// The first bytes of the file, little endian.
struct Preamble {
    std::array<char, 16> magic{};
    std::uint32_t version = 0;
    std::uint32_t json_bytes = 0;
    std::uint64_t header_bytes = 0;
    std::uint64_t file_bytes = 0;
    std::uint64_t header_checksum = 0; ///< XXH64 of the header behind the preamble
    std::uint64_t reserved = 0;        ///< 0
    std::uint64_t checksum = 0;        ///< XXH64 of the preamble up to here
};
static_assert(sizeof(Preamble) == k_preamble_bytes);

std::uint64_t checksum_of(const Preamble& preamble) {
    return xxh64(std::as_bytes(std::span(&preamble, 1)).first(offsetof(Preamble, checksum)));
}

Error damaged(std::string_view what) {
    return make_error(ErrorCode::damaged, "the snapshot is damaged: {}", what);
}

Bytes row_count(const SnapshotDescription& description) {
    return sum_of(description.extents,
                  [](const SnapshotExtent& extent) { return chunk_count(extent.bytes); });
}

/// Whether the rows are of the extents' chunks, and with the header fill the file without gap or overlap.
bool holds_together(const SnapshotHeader& header, const std::vector<ChunkPlace>& places) {
    std::vector<std::pair<Bytes, Bytes>> spans; // begin and size
    for (std::size_t i = 0; i < places.size(); ++i) {
        const auto& row = header.rows[i];
        if (row.content_bytes != places[i].bytes || row.reserved != 0 || !codec::is_valid(row.shape) ||
            row.stored_bytes != round_up(row.used_bytes, k_alignment) || row.used_bytes == 0)
            return false;
        if (row.shape.width == 0 ? row.used_bytes != row.content_bytes : row.used_bytes >= row.content_bytes)
            return false;
        spans.emplace_back(row.offset, row.stored_bytes);
    }
    std::sort(spans.begin(), spans.end());
    auto end = header.header_bytes;
    for (const auto& [begin, bytes] : spans) {
        if (begin != end) return false;
        end += bytes;
    }
    return end == header.file_bytes;
}

} // namespace

Bytes header_bytes_of(const SnapshotDescription& description) {
    return round_up(k_preamble_bytes + max_json_bytes(description) +
                        row_count(description) * sizeof(ChunkRow),
                    k_alignment);
}

Bytes max_file_bytes(const SnapshotDescription& description) {
    const auto takes = [](const SnapshotExtent& extent) { return round_up(extent.bytes, k_alignment); };
    return header_bytes_of(description) + sum_of(description.extents, takes);
}

std::vector<std::byte> encode_header(const SnapshotHeader& header) {
    std::vector<std::byte> bytes(header.header_bytes);
    encode_header(header, bytes);
    return bytes;
}

void encode_header(const SnapshotHeader& header, std::span<std::byte> bytes) {
    const auto json = make_json(header.description, header.file_bytes, header.rows);
    std::memcpy(&bytes[k_preamble_bytes], json.data(), json.size());
    if (!header.rows.empty())
        std::memcpy(&bytes[k_preamble_bytes + json.size()], header.rows.data(),
                    header.rows.size() * sizeof(ChunkRow));
    Preamble preamble;
    std::copy(k_magic.begin(), k_magic.end(), preamble.magic.begin());
    preamble.version = k_snapshot_version;
    preamble.json_bytes = static_cast<std::uint32_t>(json.size());
    preamble.header_bytes = header.header_bytes;
    preamble.file_bytes = header.file_bytes;
    preamble.header_checksum = xxh64(bytes.subspan(k_preamble_bytes));
    preamble.checksum = checksum_of(preamble);
    std::memcpy(bytes.data(), &preamble, sizeof(preamble));
}

Result<Bytes> read_preamble(std::span<const std::byte, k_preamble_bytes> bytes, Bytes file_bytes) {
    Preamble preamble;
    std::memcpy(&preamble, bytes.data(), sizeof(preamble));
    if (!std::equal(k_magic.begin(), k_magic.end(), preamble.magic.begin()))
        return damaged("its magic number is wrong");
    if (preamble.checksum != checksum_of(preamble))
        return damaged("the checksum of its first bytes is wrong");
    if (preamble.version != k_snapshot_version)
        return make_error(ErrorCode::protocol_mismatch,
                          "the snapshot is version {}, but this program reads version {}", preamble.version,
                          k_snapshot_version);
    if (preamble.file_bytes != file_bytes)
        return make_error(ErrorCode::damaged, "the snapshot is damaged: it has {} of {}",
                          counted(file_bytes, "byte"), preamble.file_bytes);
    if (preamble.header_bytes > std::min(file_bytes, k_max_header_bytes) ||
        preamble.header_bytes % k_alignment != 0 || preamble.reserved != 0 ||
        k_preamble_bytes + Bytes{preamble.json_bytes} > preamble.header_bytes)
        return damaged("its header has the wrong size");
    return preamble.header_bytes;
}

Result<SnapshotHeader> decode_header(std::span<const std::byte> bytes, Bytes file_bytes) {
    if (bytes.size() < k_preamble_bytes) return damaged("it is too short");
    const auto header_bytes = GPU_SLEEP_TRY(read_preamble(bytes.first<k_preamble_bytes>(), file_bytes));
    if (header_bytes != bytes.size()) return damaged("its header has the wrong size");
    Preamble preamble;
    std::memcpy(&preamble, bytes.data(), sizeof(preamble));
    auto rest = bytes.subspan(k_preamble_bytes);
    if (preamble.header_checksum != xxh64(rest)) return damaged("the checksum of its header is wrong");

    const auto* const begin = reinterpret_cast<const char*>(rest.data());
    auto description = read_json({begin, preamble.json_bytes});
    if (!description) return damaged("its header cannot be understood");
    // What is derived below is written into as many bytes.
    if (header_bytes != header_bytes_of(*description)) return damaged("its header has the wrong size");
    rest = rest.subspan(preamble.json_bytes);
    const auto rows = row_count(*description);
    if (rows > rest.size() / sizeof(ChunkRow)) return damaged("its header is too small for its contents");

    SnapshotHeader header{*std::move(description), {}, header_bytes, file_bytes};
    header.rows.resize(static_cast<std::size_t>(rows));
    if (rows > 0) std::memcpy(header.rows.data(), rest.data(), header.rows.size() * sizeof(ChunkRow));
    if (!holds_together(header, places_of(header.description.extents)))
        return damaged("its chunk offsets are inconsistent");
    // What is derived must be what would be written, byte for byte.
    const auto again = encode_header(header);
    if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()))
        return damaged("its header contradicts itself");
    return header;
}

} // namespace gpu_sleep::store
