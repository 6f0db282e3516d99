// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decoding blocks on the host. Eight values at a time have their codes in the bytes of a word; the compiler
// turns the rest into vectors.

#include "codec/block_code.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined __x86_64__ && !defined GPU_SLEEP_WITHOUT_AVX2 // a test does without
#define GPU_SLEEP_HAS_AVX2
#include <immintrin.h>
#endif

namespace gpu_sleep::codec {
namespace {

constexpr std::size_t k_lanes = 32;
constexpr unsigned k_group =
    8; // values of a lane in each row of a tile: their codes are a byte of each plane

using TileBytes = std::array<std::uint8_t, k_tile_values>;
using Symbols = std::array<std::uint8_t, k_symbols + 1>; // and the escape, which is replaced

template <class T>
T load(const void* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

/// Puts the symbols of all codes into `tops`.
void read_tops(const std::byte* planes, std::size_t bits, const Symbols& symbols, TileBytes& tops) noexcept {
    static constexpr auto k_apart = [] { // bit i of a number in byte i
        std::array<std::uint64_t, 256> words{};
        for (std::size_t i = 0; i < 8 * words.size(); ++i)
            words[i / 8] |= std::uint64_t{i / 8 >> i % 8 & 1} << (i % 8 * 8);
        return words;
    }();
    for (std::size_t i = 0; i < k_line; ++i) {
        std::uint64_t codes = 0;
        for (std::size_t bit = 0; bit < bits; ++bit)
            codes |= k_apart[std::to_integer<unsigned>(planes[bit * k_line + i])] << bit;
        for (std::size_t j = 0; j < k_group; ++j)
            tops[(i % 4 * k_lanes + i / 4) * k_group + j] = symbols[codes >> (8 * j) & 255];
    }
}

#ifdef GPU_SLEEP_HAS_AVX2
/// The same, 32 values at a time.
__attribute__((target("avx2"))) void read_tops_by_avx2(const std::byte* planes, std::size_t bits,
                                                       const Symbols& symbols, TileBytes& tops) noexcept {
    const auto half = [&](std::size_t at) __attribute__((target("avx2"))) {
        return _mm256_broadcastsi128_si256(load<__m128i>(&symbols[at]));
    };
    const auto first = half(0);
    const auto second = half(16);
    const auto own_byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const auto own_bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    for (std::size_t lane = 0; lane < k_lanes; ++lane) {
        auto codes = _mm256_setzero_si256();
        for (std::size_t bit = 0; bit < bits; ++bit) {
            const auto word = _mm256_set1_epi32(load<int>(planes + bit * k_line + 4 * lane));
            const auto apart = _mm256_and_si256(_mm256_shuffle_epi8(word, own_byte), own_bit);
            const auto is_set = _mm256_cmpeq_epi8(apart, own_bit);
            codes = _mm256_or_si256(codes,
                                    _mm256_and_si256(is_set, _mm256_set1_epi8(static_cast<char>(1U << bit))));
        }
        // Bit 4 of a code says in which half its symbol is; a blend asks for bit 7.
        const auto found =
            _mm256_blendv_epi8(_mm256_shuffle_epi8(first, codes), _mm256_shuffle_epi8(second, codes),
                               _mm256_slli_epi16(codes, 3));
        for (std::size_t row = 0; row < 4; ++row)
            std::memcpy(&tops[(row * k_lanes + lane) * k_group],
                        reinterpret_cast<const std::byte*>(&found) + row * k_group, k_group);
    }
}
#endif

/// Calls `each` with the place of each value whose code is all ones, in the order of the escapes.
template <class Each>
void for_each_escape(const std::byte* planes, std::size_t bits, Each&& each) noexcept {
    for (std::size_t lane = 0; lane < k_lanes; ++lane) {
        auto mask = ~0U;
        for (std::size_t bit = 0; bit < bits; ++bit)
            mask &= load<std::uint32_t>(planes + bit * k_line + 4 * lane);
        for (; mask != 0; mask &= mask - 1) {
            const auto bit = static_cast<std::size_t>(std::countr_zero(mask));
            each((bit / k_group * k_lanes + lane) * k_group + bit % k_group);
        }
    }
}

template <class Value, int turn>
void join(const TileBytes& tops, const std::byte* low, std::byte* content) noexcept {
    constexpr std::size_t k_run =
        sizeof(Value) == 2 ? k_tile_values : 4; // values that are neighbours in both
    for (std::size_t i = 0; i < k_tile_values; i += k_run) {
        auto* const run = content + (i / 256 * 64 + i % 8 / 4 * 32 + i / 8 % 32) * 16;
        for (std::size_t j = 0; j < k_run; ++j) {
            auto value = static_cast<Value>(tops[i + j] << 8 | std::to_integer<unsigned>(low[i + j]));
            if constexpr (sizeof value == 4)
                value = value << 16 | load<std::uint16_t>(low + k_tile_values + 2 * (i + j));
            value = std::rotr(value, turn);
            std::memcpy(run + j * sizeof value, &value, sizeof value);
        }
    }
}

} // namespace

bool decode_block(BlockClass block_class, std::span<const std::byte> coded,
                  std::span<std::byte> content) noexcept {
    const std::size_t bits = code_bits(block_class);
    const auto content_bytes = static_cast<std::uint32_t>(content.size());
    const BlockLayout layout(block_class, content_bytes);
    if (layout.escapes > coded.size()) return false;
    const auto head = load<BlockHead>(coded.data());
    const auto there = static_cast<std::uint32_t>(std::min<std::size_t>(coded.size(), ~0U));
    if (!is_sound(head, {.coded_bytes = there, .block_class = block_class}, content_bytes)) return false;
    Symbols symbols{};
    std::copy_n(head.plan.symbols, k_symbols, symbols.begin());
    auto* read = read_tops;
#ifdef GPU_SLEEP_HAS_AVX2
    if (__builtin_cpu_supports("avx2") != 0) read = read_tops_by_avx2;
#endif
    auto* join_tile = is_rotated(block_class) ? join<std::uint16_t, 1> : join<std::uint16_t, 0>;
    if (value_bytes(block_class) == 4)
        join_tile = is_rotated(block_class) ? join<std::uint32_t, 1> : join<std::uint32_t, 0>;
    TileBytes tops;
    for (std::size_t i = 0; i < layout.tiles; ++i) {
        const auto* const planes = &coded[layout.first_tile + i * layout.tile_bytes];
        read(planes, bits, symbols, tops);
        auto at = std::size_t{layout.escapes} + load<std::uint32_t>(&coded[k_line + 4 * i]);
        for_each_escape(planes, bits, [&](std::size_t value) {
            if (at < head.plan.coded_bytes) tops[value] = std::to_integer<std::uint8_t>(coded[at]);
            ++at;
        });
        if (at > head.plan.coded_bytes) return false;
        join_tile(tops, planes + bits * k_line, &content[i * k_tile_values * value_bytes(block_class)]);
    }
    return true;
}

} // namespace gpu_sleep::codec
