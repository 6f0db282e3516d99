// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The weights of a Huffman tree as zstd's finite state entropy (FSE) code. Internal to this module.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gpu_sleep::codec {

/// Weights of all byte values but the last that has a code.
struct Weights {
    std::array<std::uint8_t, 255> values{};
    std::size_t count = 0;
};

inline constexpr unsigned k_max_weight = 11;

/// Writes at least two weights of at least two kinds. Returns the bytes; nothing if there are fewer weights,
/// or they do not fit. Source: RFC 8878, 4.1 and 4.2.1.2.
[[nodiscard]] std::optional<std::size_t> write_weights(std::span<const std::uint8_t> weights,
                                                       std::span<std::byte> out) noexcept;

/// Reads weights that fill `bytes`; nothing if they are not valid.
[[nodiscard]] std::optional<Weights> read_weights(std::span<const std::byte> bytes) noexcept;

} // namespace gpu_sleep::codec
