// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The nearly fixed-rate code of blocks in host memory, as BLOCKS.md defines it: classes, the layout of a
// coded block, and its decoder for the host. GPUs encode; the kernels are in src/driver/kernels.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpu_sleep::codec {

/// Most contents of a block.
inline constexpr std::uint32_t k_largest_block = 1U << 20;
/// Contents that are no multiple of this are not coded.
inline constexpr std::uint32_t k_coded_unit = 4096;
inline constexpr std::uint32_t k_tile_values = 1024;
/// Each part of a coded block begins at a multiple of this: a line of the GPU's cache, a packet on the link.
inline constexpr std::uint32_t k_line = 128;
inline constexpr std::uint32_t k_block_version = 1;

/// Bits 0 to 2 are the bits of a code, bit 3 says whether values are rotated left by one bit first, and bits
/// 4 to 6 are the bytes of a value.
enum class BlockClass : std::uint8_t {
    raw = 0,
    half_exponent_3 = 0x2B,
    half_exponent_4 = 0x2C,
    half_exponent_5 = 0x2D,
    half_top_3 = 0x23,
    word_exponent_3 = 0x4B,
    word_exponent_4 = 0x4C,
    word_top_3 = 0x43,
    word_top_4 = 0x44,
};
constexpr unsigned code_bits(BlockClass c) {
    return static_cast<unsigned>(c) & 7;
}
constexpr bool is_rotated(BlockClass c) {
    return (static_cast<unsigned>(c) & 8) != 0;
}
constexpr unsigned value_bytes(BlockClass c) {
    return static_cast<unsigned>(c) >> 4;
}

/// All classes but raw.
inline constexpr unsigned k_coded_classes = 8;
constexpr BlockClass coded_class(unsigned index) {
    constexpr std::uint8_t k_all[k_coded_classes] = {0x2B, 0x2C, 0x2D, 0x23, 0x4B, 0x4C, 0x43, 0x44};
    return BlockClass{k_all[index]};
}

inline constexpr unsigned k_symbols = 31; // of codes of five bits, whose last is the escape

/// How a block is coded.
struct BlockPlan {
    std::uint32_t coded_bytes = 0; ///< the contents' own if raw
    BlockClass block_class = BlockClass::raw;
    std::uint8_t symbols[k_symbols] = {}; ///< the commonest top bytes, commonest first
    friend bool operator==(const BlockPlan&, const BlockPlan&) = default;
};

/// What a coded block begins with; the rest of its first line is zero. Little endian.
struct BlockHead {
    std::uint32_t version = k_block_version;
    std::uint32_t content_bytes = 0;
    BlockPlan plan;
};
static_assert(sizeof(BlockHead) == 44);

/// Where the parts of a coded block begin, in bytes, and what they are. Raw blocks have none: they have no
/// room.
struct BlockLayout {
    std::uint32_t tiles = 0;
    std::uint32_t tile_bytes = 0;
    std::uint32_t first_tile = 0; ///< behind the head and an offset for each tile
    std::uint32_t escapes = ~0U;  ///< the rest of the block: one byte each, in whole words

    constexpr BlockLayout(BlockClass c, std::uint32_t content_bytes) {
        if (c == BlockClass::raw) return;
        tiles = content_bytes / k_tile_values / value_bytes(c);
        tile_bytes = k_tile_values / 8 * code_bits(c) + k_tile_values * (value_bytes(c) - 1);
        first_tile = k_line + (tiles + 31) / 32 * k_line;
        escapes = first_tile + tiles * tile_bytes;
    }
};

/// What a block takes whose escapes end there.
constexpr std::uint32_t whole_words(std::uint32_t end) {
    return (end + 3) / 4 * 4;
}

/// Whether a block that begins with `head` has the class of `plan` and that size, and does not need more than
/// plan.coded_bytes, which are there.
constexpr bool is_sound(const BlockHead& head, const BlockPlan& plan, std::uint32_t content_bytes) {
    return content_bytes % k_coded_unit == 0 && head.version == k_block_version &&
           head.content_bytes == content_bytes && head.plan.block_class == plan.block_class &&
           head.plan.coded_bytes <= plan.coded_bytes && head.plan.coded_bytes % 4 == 0 &&
           head.plan.coded_bytes >= BlockLayout(plan.block_class, content_bytes).escapes;
}

/// The smallest plan, without its symbols, for contents of which each class codes so many values without an
/// escape; raw unless a thirty-second is saved, since coding costs time.
constexpr BlockPlan choose_class(std::uint32_t content_bytes, const std::uint32_t* values) {
    BlockPlan plan{.coded_bytes = content_bytes - content_bytes / 32};
    for (unsigned i = 0; i < k_coded_classes && content_bytes % k_coded_unit == 0; ++i) {
        const BlockLayout layout(coded_class(i), content_bytes);
        const auto bytes = whole_words(layout.escapes + layout.tiles * k_tile_values - values[i]);
        if (bytes < plan.coded_bytes) plan = {.coded_bytes = bytes, .block_class = coded_class(i)};
    }
    if (plan.block_class == BlockClass::raw) plan.coded_bytes = content_bytes;
    return plan;
}

/// Decodes a block, which other bytes may follow, into all of `content`, a multiple of k_coded_unit. Never
/// reads or writes outside of either, whatever `coded` holds. Returns false if it is not a block of that
/// class, which is not raw, and of that size, or refers to escapes that it lacks: `content` is then
/// undefined. Other damage gives other contents. Thread-safe.
[[nodiscard]] bool decode_block(BlockClass block_class, std::span<const std::byte> coded,
                                std::span<std::byte> content) noexcept;

} // namespace gpu_sleep::codec
