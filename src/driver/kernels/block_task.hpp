// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the kernels that code blocks take and return.

#pragma once

#include "codec/block_code.hpp"

namespace gpu_sleep::driver {

/// A block to measure, encode or decode; the kernels take (tasks, count). The addresses are the device's: its
/// own memory, or host memory that is page-locked. `content` is a multiple of 16, `coded` of codec::k_line.
struct BlockTask {
    std::uint64_t content = 0;
    std::uint64_t coded = 0;
    std::uint32_t content_bytes = 0; ///< at most codec::k_largest_block
    /// 1 when the block, encoded, would be longer than the room for it, or is not a coded block of that class
    /// and size: what was to be written is then undefined.
    std::uint32_t failed = 0;
    /// Set by `gpu_sleep_measure_blocks`. To encode, `coded_bytes` is
    /// the room at `coded`, and afterwards what was used of it; to decode, how many bytes are there.
    codec::BlockPlan plan{};
};
static_assert(sizeof(BlockTask) == 64);

/// Threads of a block of `gpu_sleep_measure_blocks` and `gpu_sleep_encode_blocks`, which take a task at a
/// time.
inline constexpr unsigned k_encode_threads = 512;
/// Threads of a block of `gpu_sleep_decode_blocks`, which takes one of so many parts of a task at a time.
inline constexpr unsigned k_decode_threads = 256;
inline constexpr unsigned k_decode_parts = 8;

} // namespace gpu_sleep::driver
