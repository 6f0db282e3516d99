// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The header of a snapshot as bytes. The format is described in SNAPSHOT.md.

#pragma once

#include "store/snapshot_description.hpp"

namespace gpu_sleep::store {

/// Everything in the file but contents.
struct SnapshotHeader {
    SnapshotDescription description;
    std::vector<ChunkRow> rows; ///< those of the first extent first
    Bytes header_bytes = 0;     ///< where contents may begin
    Bytes file_bytes = 0;
};

/// All offsets and sizes of reads and writes are multiples of it.
inline constexpr Bytes k_alignment = 4 * k_kib;

/// A reader takes no longer header, so a writer makes none.
inline constexpr Bytes k_max_header_bytes = 64 * k_mib;

/// The size of the header for these extents, which does not depend on the sizes of their chunks.
[[nodiscard]] Bytes header_bytes_of(const SnapshotDescription& description);

/// The size of the file if no chunk can be compressed.
[[nodiscard]] Bytes max_file_bytes(const SnapshotDescription& description);

/// Writes the header to `bytes`, header_bytes of them, which are zero.
void encode_header(const SnapshotHeader& header, std::span<std::byte> bytes);
/// The header's bytes.
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

} // namespace gpu_sleep::store
