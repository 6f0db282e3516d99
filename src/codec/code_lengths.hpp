// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How many bits the code of each byte value takes: chosen from a histogram, and written as zstd's Huffman
// tree description and read from it. Internal to this module.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gpu_sleep::codec {

inline constexpr unsigned k_max_code_bits = 11;

using Histogram = std::array<std::uint32_t, 256>;
/// For each byte value; 0 for one that has no code.
using CodeLengths = std::array<std::uint8_t, 256>;
/// The tree description of zstd takes no more (RFC 8878, 4.2.1.1).
inline constexpr std::size_t k_tree_bound = 129;

/// Counts each byte value. Thread-safe.
[[nodiscard]] Histogram histogram_of(std::span<const std::byte> bytes) noexcept;

/// The lengths of a prefix code that takes the fewest bits among those with at most k_max_code_bits. At
/// least two byte values must occur. Source: Larmore and Hirschberg, "A fast algorithm for optimal
/// length-limited Huffman codes" (package-merge).
[[nodiscard]] CodeLengths make_code_lengths(const Histogram& histogram) noexcept;

/// Writes the tree description. Returns its bytes; nothing if the code has none (all weights equal, of more
/// than 128 values: such bytes do not compress). Source: RFC 8878, 4.2.1.
[[nodiscard]] std::optional<std::size_t> write_tree(const CodeLengths& lengths,
                                                    std::span<std::byte, k_tree_bound> out) noexcept;

struct Tree {
    CodeLengths lengths{};
    std::size_t bytes = 0; ///< of the description
};

/// Reads the tree description that `bytes` begin with; nothing if it is not valid, or has a longer code.
[[nodiscard]] std::optional<Tree> read_tree(std::span<const std::byte> bytes) noexcept;

/// Where the code of each byte value lies among all numbers of k_max_code_bits bits: it is the front of
/// those from `first` on. zstd's order: longer codes first, then by value.
[[nodiscard]] std::array<std::uint16_t, 256> first_numbers(const CodeLengths& lengths) noexcept;

} // namespace gpu_sleep::codec
