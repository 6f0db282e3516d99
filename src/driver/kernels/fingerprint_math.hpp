// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The arithmetic that the fingerprint kernel and its host twin share. Compiled by nvcc and by the host
// compiler.

#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GPU_SLEEP_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GPU_SLEEP_HOST_DEVICE inline
#endif

namespace gpu_sleep::driver {

/// 16 bytes of memory as two little-endian words.
struct Word {
    std::uint64_t first;
    std::uint64_t second;
};

/// Both halves of the 128-bit product, folded: every bit of either factor reaches every bit of the result.
GPU_SLEEP_HOST_DEVICE std::uint64_t fold_product(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
    return (a * b) ^ __umul64hi(a, b);
#else
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#endif
}

/// Keeps the bytes [begin, end) of a word and clears the others; 0 <= begin < end <= 16.
GPU_SLEEP_HOST_DEVICE Word keep_bytes(Word word, unsigned begin, unsigned end) {
    constexpr auto below = [](unsigned n) {
        return n >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * n)) - 1;
    };
    const auto first = below(end) & ~below(begin);
    const auto second = end > 8 ? below(end - 8) & ~(begin > 8 ? below(begin - 8) : std::uint64_t{0}) : 0;
    return {word.first & first, word.second & second};
}

/// Adds the word at position `index` of its block to the running sums. The sums are commutative, so threads
/// may take the words in any order; the position enters the mix, so words may not trade places unseen.
GPU_SLEEP_HOST_DEVICE void accumulate(std::uint64_t& low, std::uint64_t& high, Word word,
                                      std::uint64_t index) {
    low +=
        fold_product(word.first ^ 0x9E3779B97F4A7C15ULL, word.second ^ (0xC2B2AE3D27D4EB4FULL * (index + 1)));
    high +=
        fold_product(word.second ^ 0x165667B19E3779F9ULL, word.first ^ (0x27D4EB2F165667C5ULL * (index + 7)));
}

} // namespace gpu_sleep::driver
