// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the kernels of src/driver/kernels do to blocks besides decoding them, on the host and bit for bit: for
// the simulated driver, and for tests.

#pragma once

#include "codec/block_code.hpp"

namespace gpu_sleep::test {

/// Chooses how to code `content`, 1 to k_largest_block bytes.
[[nodiscard]] codec::BlockPlan measure_block(std::span<const std::byte> content);

/// Codes `content`, a multiple of k_coded_unit, as `plan`, which is not raw, says, into at most all of
/// `coded`. Returns the bytes of the coded block; 0 if it would be longer: `coded` is then undefined.
[[nodiscard]] std::size_t encode_block(const codec::BlockPlan& plan, std::span<const std::byte> content,
                                       std::span<std::byte> coded);

} // namespace gpu_sleep::test
