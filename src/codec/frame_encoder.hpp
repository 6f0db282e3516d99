// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing frames (frame.hpp).

#pragma once

#include "base/units.hpp"
#include "codec/frame.hpp"

#include <cstddef>
#include <span>

namespace gpu_sleep::codec {

/// The size of the buffer that encode_frame() needs. It is larger than the frame: a block that turns out not
/// to become smaller is written again.
[[nodiscard]] constexpr std::size_t frame_bound(Bytes content_bytes) noexcept {
    return static_cast<std::size_t>(content_bytes + 4 * block_count(content_bytes) + 32 * k_kib);
}

/// Writes `content`, 1 to k_frame_content_bytes, as a frame to `out` (at least frame_bound() bytes) and an
/// entry for each block to `entries` (block_count() of them). Returns the frame's bytes: at most 10 bytes,
/// and 3 for each block, more than the contents. Thread-safe.
[[nodiscard]] std::size_t encode_frame(std::span<const std::byte> content, std::span<std::byte> out,
                                       std::span<BlockEntry> entries) noexcept;

} // namespace gpu_sleep::codec
