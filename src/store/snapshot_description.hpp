// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the header of a snapshot says: its owner, its extents, and the offset of each chunk of their
// contents; and the part of it that people can read.

#pragma once

#include "base/process.hpp"
#include "codec/chunk.hpp"

namespace gpu_sleep::store {

/// Of the format of snapshots.
inline constexpr std::uint32_t k_snapshot_version = 2;

/// Contents that belong together: a range of a program, or a part of one.
struct SnapshotExtent {
    std::uint64_t address = 0;
    Bytes bytes = 0;
    std::string tag;
    int device = 0;
    friend bool operator==(const SnapshotExtent&, const SnapshotExtent&) = default;
};

/// The part of the header that is known before the first byte is written.
struct SnapshotDescription {
    std::string id;      ///< 32 hexadecimal digits, unique
    std::string created; ///< UTC, "2026-11-21T12:34:56Z"
    ProcessIdentity owner;
    std::uint32_t uid = 0;
    std::vector<SnapshotExtent> extents; ///< none is empty
    /// The owner's machine since it was started, as boot_id() has it; empty if it is not known.
    std::string boot{};
    friend bool operator==(const SnapshotDescription&, const SnapshotDescription&) = default;

    [[nodiscard]] Bytes content_bytes() const noexcept { return sum_of(extents, &SnapshotExtent::bytes); }
};

/// A chunk: 32 bytes, little endian, as in the file.
struct ChunkRow {
    std::uint64_t offset = 0;        ///< in the file
    std::uint32_t stored_bytes = 0;  ///< in the file, with zeros up to a multiple of k_alignment
    std::uint32_t used_bytes = 0;    ///< of those
    std::uint32_t content_bytes = 0; ///< of the extent
    codec::Shape shape;
    std::uint16_t reserved = 0; ///< 0
    std::uint64_t checksum = 0; ///< XXH64 of the stored bytes
};
static_assert(sizeof(ChunkRow) == 32);

/// The place of a chunk in its extent.
struct ChunkPlace {
    std::size_t extent = 0;
    Bytes offset = 0;       ///< in the extent
    std::size_t bytes = 0;  ///< of contents
    std::size_t number = 0; ///< of the chunk in the snapshot
};

/// The number of chunks of an extent of `bytes`.
[[nodiscard]] constexpr std::size_t chunk_count(Bytes bytes) noexcept {
    return static_cast<std::size_t>((bytes + codec::k_chunk_bytes - 1) / codec::k_chunk_bytes);
}

/// The chunks that the extents are cut into, in order; of those extents that are `wanted`, or all if none is.
[[nodiscard]] std::vector<ChunkPlace> places_of(const std::vector<SnapshotExtent>& extents,
                                                const std::vector<std::size_t>& wanted = {});

/// A description with the calling process as owner. Errors: io_failed.
[[nodiscard]] Result<SnapshotDescription> describe_own();

/// A new id. Errors: io_failed. Source: getrandom(2).
[[nodiscard]] Result<std::string> make_snapshot_id();

/// The time now, as SnapshotDescription::created has it.
[[nodiscard]] std::string utc_now();

/// `rows` are those of the chunks of the extents, in order; with none, what depends on them is as long as it
/// can be.
[[nodiscard]] std::string make_json(const SnapshotDescription& description, Bytes file_bytes,
                                    std::span<const ChunkRow> rows);

/// The longest make_json() for any rows.
[[nodiscard]] std::size_t max_json_bytes(const SnapshotDescription& description);

/// What the JSON says, but for what depends on the contents; nothing if a value is missing. Trusts nothing in
/// it: time and memory are in proportion to the text, and it throws only for want of memory. Whether all of
/// the text is what make_json() makes of that, the caller finds out by making it again.
[[nodiscard]] std::optional<SnapshotDescription> read_json(std::string_view text);

} // namespace gpu_sleep::store
