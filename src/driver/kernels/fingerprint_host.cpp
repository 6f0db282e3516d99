// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fingerprint on the host, word for word what the kernel computes.

#include "driver/kernels/fingerprint_math.hpp"

#include <algorithm>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace gpu_sleep::driver {
namespace {

constexpr std::size_t k_row_bytes = k_fingerprint_threads * sizeof(Quad);

/// The sums of all threads for a block so far.
struct Threads {
    ThreadSum sums[k_fingerprint_threads] = {};
    std::uint64_t bits = 0; ///< each that is set in any word
};

void add_quad(Threads& threads, const std::byte* from, std::size_t bytes, unsigned thread, const Quad* key) {
    Quad quad{};
    std::memcpy(&quad, from, bytes);
    accumulate(threads.sums[thread], quad, key);
    for (const auto word : quad.words) threads.bits |= word;
}

#ifdef __x86_64__
/// Adds `rows` whole rows, a line of the cache at a time; `key` is that of the first.
__attribute__((target("avx2"))) void add_rows(Threads& threads, const std::byte* from, unsigned rows,
                                              const Quad* key) {
    auto bits = _mm256_setzero_si256();
    for (unsigned thread = 0; thread < k_fingerprint_threads; thread += 4) {
        const auto* at = from + thread * sizeof(Quad);
        __m256i sums[4][2] = {};
        for (unsigned row = 0; row < rows; ++row, at += k_row_bytes) {
            const auto* const line = reinterpret_cast<const __m256i*>(at);
            const __m256i halves[] = {_mm256_loadu_si256(line), _mm256_loadu_si256(line + 1)};
            bits = _mm256_or_si256(bits, _mm256_or_si256(halves[0], halves[1]));
#pragma GCC unroll 4
            for (unsigned stream = 0; stream < 4; ++stream) {
                const auto keys = _mm256_broadcastsi128_si256(
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(key + row + stream)));
#pragma GCC unroll 2
                for (unsigned half = 0; half < 2; ++half) {
                    const auto factors = _mm256_add_epi32(halves[half], keys);
                    const auto products = _mm256_mul_epu32(factors, _mm256_srli_epi64(factors, 32));
                    sums[stream][half] = _mm256_add_epi64(sums[stream][half], products);
                }
            }
        }
        for (unsigned stream = 0; stream < 4; ++stream) {
            std::uint64_t pairs[8];
            std::memcpy(pairs, sums[stream], sizeof pairs);
            for (std::size_t i = 0; i < 4; ++i)
                threads.sums[thread + i].streams[stream] += pairs[2 * i] + pairs[2 * i + 1];
        }
    }
    if (_mm256_testz_si256(bits, bits) == 0) threads.bits |= 1;
}

bool has_fast_rows() noexcept {
    return __builtin_cpu_supports("avx2") != 0;
}
#endif

/// The sum over a group; `words(i)` is member i's.
template <class Words>
GroupSum sum_group(std::size_t members, const std::uint64_t* key, Words&& words) {
    GroupSum sum{};
    for (std::size_t i = 0; i < members; ++i) add(sum, group_part(words(i), key + 4 * i));
    return sum;
}

Fingerprint finish(const FingerprintKey& key, const Threads& threads) {
    std::uint64_t warps[k_fingerprint_warps][4];
    for (std::size_t warp = 0; warp < k_fingerprint_warps; ++warp) {
        const auto* const sums = threads.sums + warp * k_fingerprint_lanes;
        store(sum_group(k_fingerprint_lanes, key.lanes, [&](std::size_t lane) { return sums[lane].streams; }),
              warps[warp]);
    }
    Fingerprint result;
    store(sum_group(k_fingerprint_warps, key.warps, [&](std::size_t warp) { return warps[warp]; }),
          result.words);
    result.is_zero = threads.bits == 0;
    return result;
}

Fingerprint fingerprint(const FingerprintKey& key, FingerprintBlock block) {
    const auto* const data = reinterpret_cast<const std::byte*>(block.address);
    Threads threads;
    unsigned row = 0;
#ifdef __x86_64__
    if (has_fast_rows()) {
        constexpr unsigned k_rows_at_once = 4; // each is a stream that the processor fetches ahead
        const auto rows = static_cast<unsigned>(block.bytes / k_row_bytes);
        for (; row < rows; row += std::min(k_rows_at_once, rows - row))
            add_rows(threads, data + row * k_row_bytes, std::min(k_rows_at_once, rows - row), key.rows + row);
    }
#endif
    auto thread = 0U;
    for (auto done = row * k_row_bytes; done < block.bytes; done += sizeof(Quad)) {
        add_quad(threads, data + done, std::min(sizeof(Quad), block.bytes - done), thread, key.rows + row);
        if (++thread < k_fingerprint_threads) continue;
        thread = 0;
        ++row;
    }
    return finish(key, threads);
}

} // namespace

void fingerprint_on_host(const FingerprintKey& key, const FingerprintBlock* blocks, Fingerprint* out,
                         std::uint64_t count) {
    std::transform(blocks, blocks + count, out,
                   [&](const FingerprintBlock& block) { return fingerprint(key, block); });
}

} // namespace gpu_sleep::driver
