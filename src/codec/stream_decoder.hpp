// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The tables of a code, and the reading of the streams of blocks with them. Internal to this module.

#pragma once

#include "codec/code_lengths.hpp"
#include "codec/frame.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpu_sleep::codec {

/// The streams of a block, one after the other, each of at least 8 bytes, and where its contents go.
struct CodedBlock {
    const std::byte* streams = nullptr;
    std::array<std::uint16_t, k_streams> stream_bytes{};
    std::span<std::byte> out;
};

/// Reads streams of one code. Never reads beyond them or writes beyond the contents, whatever they hold.
/// Thread-safe.
class StreamDecoder {
public:
    /// `lengths` is a complete code.
    explicit StreamDecoder(const CodeLengths& lengths) noexcept;

    /// False if a stream does not end just where its contents do; they are then undefined.
    [[nodiscard]] bool decode(const CodedBlock& block) const noexcept;
    /// Decodes two blocks of k_block_bytes, the contents of `second` right behind those of `first`. Faster
    /// than one after the other.
    [[nodiscard]] bool decode(const CodedBlock& first, const CodedBlock& second) const noexcept;

private:
    static constexpr std::size_t k_numbers = std::size_t{1} << k_max_code_bits;

    /// What a number of k_max_code_bits bits begins with: a value in the upper byte, the length of its
    /// code in the lower one.
    using OneCode = std::uint16_t;
    /// All whole codes at the front of such a number, up to six: their values from the lowest byte on, how
    /// many they are, and how many bits they take, in the two highest bytes.
    using CodesInFront = std::uint64_t;

    template <std::size_t Count>
    struct Streams;

    [[nodiscard]] CodesInFront codes_of(std::size_t number) const noexcept;
    template <std::size_t Count>
    void read_one_each(Streams<Count>& streams, std::ptrdiff_t rounds, auto distance) const noexcept;
    void read_many_each(Streams<k_streams>& streams, std::ptrdiff_t rounds) const noexcept;
    template <std::size_t Count>
    [[nodiscard]] bool read_to_end(Streams<Count>& streams, auto distance) const noexcept;
    template <std::size_t Count>
    [[nodiscard]] bool finish(const Streams<Count>& streams) const noexcept;

    alignas(64) std::array<OneCode, k_numbers> one_;
    std::array<CodesInFront, k_numbers> many_; ///< undefined unless has_many_
    bool has_many_ = false;
};

} // namespace gpu_sleep::codec
