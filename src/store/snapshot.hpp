// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The header of a snapshot: its owner, its extents, and the offset of each chunk of their contents. The
// format is described in SNAPSHOT.md.

#pragma once

#include "base/process.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "codec/chunk.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gpu_sleep::store {

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

    [[nodiscard]] Bytes content_bytes() const noexcept;
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

/// Everything in the file but contents.
struct SnapshotHeader {
    SnapshotDescription description;
    std::vector<ChunkRow> rows; ///< those of the first extent first
    Bytes header_bytes = 0;     ///< where contents may begin
    Bytes file_bytes = 0;
};

/// All offsets and sizes of reads and writes are multiples of it.
inline constexpr Bytes k_alignment = 4 * k_kib;

/// The number of chunks of an extent of `bytes`.
[[nodiscard]] constexpr std::size_t chunk_count(Bytes bytes) noexcept {
    return static_cast<std::size_t>((bytes + codec::k_chunk_bytes - 1) / codec::k_chunk_bytes);
}

/// The chunks that the extents are cut into, in order.
[[nodiscard]] std::vector<ChunkPlace> places_of(const std::vector<SnapshotExtent>& extents);

/// A reader takes no longer header, so a writer makes none.
inline constexpr Bytes k_max_header_bytes = 64 * k_mib;

/// The size of the header for these extents, which does not depend on the sizes of their chunks.
[[nodiscard]] Bytes header_bytes_of(const SnapshotDescription& description);

/// The size of the file if no chunk can be compressed.
[[nodiscard]] Bytes max_file_bytes(const SnapshotDescription& description);

/// The header's bytes: header_bytes of them.
[[nodiscard]] std::vector<std::byte> encode_header(const SnapshotHeader& header);

/// Bytes at the front of the file, enough to know the size of the header.
inline constexpr std::size_t k_preamble_bytes = 64;

/// The size of the header of a file of `file_bytes` that begins with `preamble`. Errors: damaged;
/// protocol_mismatch (a version that this one does not know).
[[nodiscard]] Result<Bytes> read_preamble(std::span<const std::byte, k_preamble_bytes> preamble,
                                          Bytes file_bytes);

/// Reads a whole header, of the size that read_preamble() gave, and checks that its sizes and offsets are
/// consistent and fill the file. Errors: as for read_preamble().
[[nodiscard]] Result<SnapshotHeader> decode_header(std::span<const std::byte> bytes, Bytes file_bytes);

/// A description with the calling process as owner. Errors: io_failed.
[[nodiscard]] Result<SnapshotDescription> describe_own();

/// A new id. Errors: io_failed. Source: getrandom(2).
[[nodiscard]] Result<std::string> make_snapshot_id();

/// The time now, as SnapshotDescription::created has it.
[[nodiscard]] std::string utc_now();

} // namespace gpu_sleep::store
