// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The arithmetic that the fingerprint kernel and its host twin share, and the proof of its bound. Compiled by
// nvcc and by the host compiler.
//
// The function. NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO '99) maps words of w bits m[0],
// m[1], ... by a key of as many words k[0], k[1], ... to
//
//     NH(m) = sum over i of ((m[2i] + k[2i]) mod 2^w) * ((m[2i+1] + k[2i+1]) mod 2^w)   mod 2^(2w),
//
// products and sums in full width. The words may be added in any order, since each has a key word of its own:
// what trades places meets another key. A stream more of NH, by the same key a whole number of pairs further
// on, squares the bound (Toeplitz). The block is cut into quads of 16 bytes, the last filled with zeros; quad
// i is the one in row i / 512 that thread i % 512 takes. Three levels follow the threads of a GPU:
//
// 1. the quads of a thread, w = 32, four streams, each a quad further on in FingerprintKey::rows. All threads
//    have the same key, so it fits into 2 KiB;
// 2. the results of the 32 threads of a warp, four words of w = 64 each, two streams, each a pair further on
// in
//    FingerprintKey::lanes;
// 3. the results of the 16 warps, in the same way by FingerprintKey::warps: 256 bits.
//
// The bound. Two blocks of equal length that differ, both chosen independently of the key, have the same
// fingerprint with a probability of at most 3 * 2^-128.
//
// One pair: for (a, b) != (a', b'), any c, and x = (a + k) mod 2^w and so on, xy - x'y' = c (mod 2^(2w))
// holds with a probability of at most 2^-w. Say a != a' (else exchange the factors), and fix the key word of
// a: then x != x'. Were two key words of b to solve it, k1 != k2, subtract: x (y1 - y2) = x' (y1' - y2') (mod
// 2^(2w)), where both brackets are congruent to d = (k1 - k2) mod 2^w, so each is d or d - 2^w, with 0 < d <
// 2^w. If they are the same number e, (x - x') e = 0 (mod 2^(2w)), but 0 < |x - x'| |e| < 2^(2w). If they
// differ, say d and d - 2^w, then x d + x' (2^w - d) = 0 (mod 2^(2w)); but this lies strictly between 0 and
// 2^(2w), for x and x' are below 2^w and not both 0. So one word at most of the 2^w solves it.
//
// One stream: fix the key of all pairs but one in which the two messages differ; what the other pairs add is
// a constant c, and pairs that agree cancel. So NH collides with a probability of at most 2^-w.
//
// s streams, each a whole number of pairs p > 0 further on: let l be the last pair that differs. In stream j
// (from 0) it meets the key of pair l + j p, which the streams before meet in no pair that differs. Fix the
// key below it: stream j still collides with a probability of at most 2^-w, whatever the streams before did.
// So all collide with at most 2^-ws: 2^-128 at each level.
//
// Three levels: the blocks differ in the quads of some thread. The results of that thread are the same with
// at most 2^-128. If they differ, those of its warp are the same with at most 2^-128, for the key is another
// one; and those of the block likewise. The probabilities add up.

#pragma once

#include "driver/kernels/fingerprint.hpp"

#include <cstddef>

#ifdef __CUDACC__
#define GPU_SLEEP_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GPU_SLEEP_HOST_DEVICE inline
#endif

namespace gpu_sleep::driver {

__extension__ using Wide = unsigned __int128;

/// Returns how much a pair of words adds to NH. `Product` has twice the bits of `Word`.
template <class Product, class Word>
GPU_SLEEP_HOST_DEVICE Product nh(Word first, Word second, Word first_key, Word second_key) {
    const auto x = static_cast<Word>(first + first_key);
    const auto y = static_cast<Word>(second + second_key);
    return static_cast<Product>(static_cast<Product>(x) * y);
}

/// The result of a thread: four streams of 64 bits.
struct ThreadSum {
    std::uint64_t streams[4];
};

/// Adds a quad of the thread; `key` is that of its row, followed by those of three rows more.
GPU_SLEEP_HOST_DEVICE void accumulate(ThreadSum& sum, Quad quad, const Quad* key) {
    const auto& m = quad.words;
    for (unsigned stream = 0; stream < 4; ++stream) {
        const auto& k = key[stream].words;
        sum.streams[stream] += nh<std::uint64_t>(m[0], m[1], k[0], k[1]);
        sum.streams[stream] += nh<std::uint64_t>(m[2], m[3], k[2], k[3]);
    }
}

/// The result of a warp or of the block: two streams of 128 bits.
struct GroupSum {
    Wide streams[2];
};

/// Returns how much four words add to the result of their group; `key` is that of the four, followed by two
/// words more.
GPU_SLEEP_HOST_DEVICE GroupSum group_part(const std::uint64_t* words, const std::uint64_t* key) {
    GroupSum part;
    for (std::size_t stream = 0; stream < 2; ++stream)
        part.streams[stream] = nh<Wide>(words[0], words[1], key[2 * stream], key[2 * stream + 1]) +
                               nh<Wide>(words[2], words[3], key[2 * stream + 2], key[2 * stream + 3]);
    return part;
}

GPU_SLEEP_HOST_DEVICE void add(GroupSum& sum, const GroupSum& part) {
    for (std::size_t stream = 0; stream < 2; ++stream) sum.streams[stream] += part.streams[stream];
}

/// The four words of a result.
GPU_SLEEP_HOST_DEVICE void store(const GroupSum& sum, std::uint64_t* words) {
    for (std::size_t stream = 0; stream < 2; ++stream) {
        words[2 * stream] = static_cast<std::uint64_t>(sum.streams[stream]);
        words[2 * stream + 1] = static_cast<std::uint64_t>(sum.streams[stream] >> 64);
    }
}

/// `bytes` bytes from byte `offset` on of two aligned quads in a row, the rest zero. offset < 16,
/// 0 < bytes <= 16. Little-endian, as GPUs are.
GPU_SLEEP_HOST_DEVICE Quad cut(Quad lower, Quad upper, unsigned offset, unsigned bytes) {
    const auto word = [&](unsigned i) { return i < 4 ? lower.words[i] : upper.words[i - 4]; };
    Quad result{};
    for (unsigned i = 0; 4 * i < bytes; ++i) {
        const auto at = offset / 4 + i;
        const auto next = at < 7 ? word(at + 1) : 0U;
        const auto pair = std::uint64_t{next} << 32 | word(at);
        const auto left = bytes - 4 * i;
        const auto mask = left >= 4 ? ~0U : (1U << (8 * left)) - 1;
        result.words[i] = static_cast<std::uint32_t>(pair >> (8 * (offset % 4))) & mask;
    }
    return result;
}

} // namespace gpu_sleep::driver
