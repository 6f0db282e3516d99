// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Splitting and joining: sixteen values at a time where the processor has SSE2, as every x86-64 has.

#include "codec/planes.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace gpu_sleep::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "a big-endian host must swap here");

template <class Value>
void split_from(std::size_t first, std::size_t count, const std::byte* values, std::byte* planes) noexcept {
    for (auto i = first; i < count; ++i) {
        Value value = 0;
        std::memcpy(&value, values + i * sizeof(Value), sizeof(Value));
        value = std::rotl(value, 1);
        for (std::size_t p = 0; p < sizeof(Value); ++p)
            planes[p * count + i] = static_cast<std::byte>(value >> (8 * p) & 0xFF);
    }
}

template <class Value>
void join_from(std::size_t first, std::size_t count, const std::byte* const* planes,
               std::byte* values) noexcept {
    for (auto i = first; i < count; ++i) {
        Value value = 0;
        for (std::size_t p = 0; p < sizeof(Value); ++p)
            value = static_cast<Value>(value | std::to_integer<Value>(planes[p][i]) << (8 * p));
        value = std::rotr(value, 1);
        std::memcpy(values + i * sizeof(Value), &value, sizeof(Value));
    }
}

#ifdef __SSE2__

constexpr std::size_t k_step = 16; // values that one round takes

__m128i load_16(const std::byte* from) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

void store_16(std::byte* to, __m128i value) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

/// Each returns how many values it did: all but the last few.
std::size_t split_2(std::size_t count, const std::byte* values, std::byte* planes) noexcept {
    const auto low_byte = _mm_set1_epi16(0xFF);
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_slli_epi16(v, 1), _mm_srli_epi16(v, 15)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        const auto a = rotated(load_16(values + 2 * i));
        const auto b = rotated(load_16(values + 2 * i + 16));
        store_16(planes + i, _mm_packus_epi16(_mm_and_si128(a, low_byte), _mm_and_si128(b, low_byte)));
        store_16(planes + count + i, _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
    }
    return i;
}

std::size_t join_2(std::size_t count, const std::byte* const* planes, std::byte* values) noexcept {
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_srli_epi16(v, 1), _mm_slli_epi16(v, 15)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        const auto low = load_16(planes[0] + i);
        const auto high = load_16(planes[1] + i);
        store_16(values + 2 * i, rotated(_mm_unpacklo_epi8(low, high)));
        store_16(values + 2 * i + 16, rotated(_mm_unpackhi_epi8(low, high)));
    }
    return i;
}

std::size_t split_4(std::size_t count, const std::byte* values, std::byte* planes) noexcept {
    const auto low_byte = _mm_set1_epi32(0xFF);
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_slli_epi32(v, 1), _mm_srli_epi32(v, 31)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        __m128i v[4];
        for (std::size_t q = 0; q < 4; ++q) v[q] = rotated(load_16(values + 4 * i + 16 * q));
        for (std::size_t p = 0; p < 4; ++p) {
            const auto byte = [&](std::size_t q) {
                return _mm_and_si128(_mm_srli_epi32(v[q], static_cast<int>(8 * p)), low_byte);
            };
            const auto halves = _mm_packs_epi32(byte(0), byte(1));
            store_16(planes + p * count + i, _mm_packus_epi16(halves, _mm_packs_epi32(byte(2), byte(3))));
        }
    }
    return i;
}

std::size_t join_4(std::size_t count, const std::byte* const* planes, std::byte* values) noexcept {
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_srli_epi32(v, 1), _mm_slli_epi32(v, 31)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        __m128i p[4];
        for (std::size_t q = 0; q < 4; ++q) p[q] = load_16(planes[q] + i);
        const __m128i low[2] = {_mm_unpacklo_epi8(p[0], p[1]), _mm_unpackhi_epi8(p[0], p[1])};
        const __m128i high[2] = {_mm_unpacklo_epi8(p[2], p[3]), _mm_unpackhi_epi8(p[2], p[3])};
        for (std::size_t q = 0; q < 2; ++q) {
            store_16(values + 4 * i + 32 * q, rotated(_mm_unpacklo_epi16(low[q], high[q])));
            store_16(values + 4 * i + 32 * q + 16, rotated(_mm_unpackhi_epi16(low[q], high[q])));
        }
    }
    return i;
}

#else

std::size_t split_2(std::size_t, const std::byte*, std::byte*) noexcept {
    return 0;
}
std::size_t join_2(std::size_t, const std::byte* const*, std::byte*) noexcept {
    return 0;
}
std::size_t split_4(std::size_t, const std::byte*, std::byte*) noexcept {
    return 0;
}
std::size_t join_4(std::size_t, const std::byte* const*, std::byte*) noexcept {
    return 0;
}

#endif

} // namespace

void split_planes(unsigned width, std::span<const std::byte> values, std::span<std::byte> planes) noexcept {
    const auto count = values.size() / width;
    if (width == 2)
        split_from<std::uint16_t>(split_2(count, values.data(), planes.data()), count, values.data(),
                                  planes.data());
    else
        split_from<std::uint32_t>(split_4(count, values.data(), planes.data()), count, values.data(),
                                  planes.data());
}

void join_planes(unsigned width, const std::byte* const* planes, std::span<std::byte> values) noexcept {
    const auto count = values.size() / width;
    if (width == 2)
        join_from<std::uint16_t>(join_2(count, planes, values.data()), count, planes, values.data());
    else
        join_from<std::uint32_t>(join_4(count, planes, values.data()), count, planes, values.data());
}

} // namespace gpu_sleep::codec
