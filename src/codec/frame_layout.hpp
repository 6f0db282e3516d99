// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fixed bytes of the profile's frames, and how a block is divided into streams. Internal to this module.
// Source: RFC 8878, 3.1.1.

#pragma once

#include "codec/frame.hpp"

namespace gpu_sleep::codec {

inline constexpr std::uint32_t k_magic = 0xFD2FB528;
/// A single segment whose content size takes four bytes; no checksum, no dictionary.
inline constexpr std::uint8_t k_descriptor = 0xA0;
inline constexpr std::size_t k_frame_header_bytes = 9;

// Three bytes: the last block's bit, two bits of type, 21 bits of size.
inline constexpr std::size_t k_block_header_bytes = 3;
enum class ZstdBlock : std::uint32_t { raw, repeated, compressed };

// Five bytes: two bits of type, two of format (four streams, sizes of 18 bits), contents, bytes.
inline constexpr std::size_t k_literals_header_bytes = 5;
enum class Literals : std::uint64_t { with_tree = 2, treeless = 3 };
inline constexpr std::uint64_t k_size_format = 3;

inline constexpr std::size_t k_jump_table_bytes = 6; // three sizes of streams
inline constexpr std::size_t k_sequences_bytes = 1;  // no sequences

/// A block shorter than this is not coded: its streams would be shorter than a word.
inline constexpr std::size_t k_min_coded_bytes = 256;

[[nodiscard]] constexpr std::size_t stream_content_bytes(std::size_t block_bytes,
                                                         std::size_t stream) noexcept {
    const auto quarter = (block_bytes + k_streams - 1) / k_streams;
    return stream + 1 < k_streams ? quarter : block_bytes - (k_streams - 1) * quarter;
}

[[nodiscard]] constexpr std::uint32_t make_place(BlockKind kind, std::size_t offset) noexcept {
    return static_cast<std::uint32_t>(kind) << 24 | static_cast<std::uint32_t>(offset);
}

} // namespace gpu_sleep::codec
