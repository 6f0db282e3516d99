// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// zstd frames of one fixed profile (src/store/SNAPSHOT.md, "Frames"): Huffman codes only, in blocks that can
// be found, and read, independently of each other. Stock zstd reads them; only this profile is read here.

#pragma once

#include "base/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpu_sleep::codec {

/// Contents of a block; the last one of a frame may be shorter.
inline constexpr Bytes k_block_bytes = 16 * k_kib;
/// Most contents of a frame.
inline constexpr Bytes k_frame_content_bytes = 4 * k_mib;
/// The streams of a coded block: three of a quarter of its contents, rounded up, and the rest.
inline constexpr std::size_t k_streams = 4;

enum class BlockKind : std::uint8_t { raw, repeated, coded };

/// Where a block of a frame lies: 12 bytes, little endian, as they are in files and on GPUs.
struct BlockEntry {
    /// The kind in the highest 8 bits; below it where its bytes begin in the frame: the contents (raw), the
    /// byte that repeats, or the first stream.
    std::uint32_t place = 0;
    std::array<std::uint16_t, k_streams> stream_bytes{}; ///< one stream after the other; 0 unless coded

    [[nodiscard]] BlockKind kind() const noexcept { return static_cast<BlockKind>(place >> 24); }
    [[nodiscard]] std::uint32_t offset() const noexcept { return place & 0xFFFFFF; }
    friend bool operator==(const BlockEntry&, const BlockEntry&) = default;
};
static_assert(sizeof(BlockEntry) == 12);

[[nodiscard]] constexpr std::size_t block_count(Bytes content_bytes) noexcept {
    return static_cast<std::size_t>((content_bytes + k_block_bytes - 1) / k_block_bytes);
}

} // namespace gpu_sleep::codec
