// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fingerprint kernel: reads memory once, at its full bandwidth, and writes 16 bytes for each block.

#include "driver/kernels/fingerprint.hpp"
#include "driver/kernels/fingerprint_math.hpp"

namespace {

using namespace gpu_sleep::driver;

/// A word that will not be read again soon: it should not push the program's data out of the cache.
__device__ Word load_streaming(std::uint64_t address) {
    const auto value = __ldcs(reinterpret_cast<const ulonglong2*>(address));
    return {value.x, value.y};
}

__device__ Word load_edge(std::uint64_t at, FingerprintBlock block) {
    const auto end = block.address + block.bytes;
    const auto from = at < block.address ? static_cast<unsigned>(block.address - at) : 0U;
    const auto to =
        at + sizeof(Word) > end ? static_cast<unsigned>(end - at) : static_cast<unsigned>(sizeof(Word));
    return keep_bytes(load_streaming(at), from, to);
}

/// Sums both words over all threads of the block; the result is valid in thread 0.
__device__ void reduce_block(std::uint64_t& low, std::uint64_t& high) {
    constexpr unsigned k_warps = k_fingerprint_threads / 32;
    __shared__ std::uint64_t lows[k_warps];
    __shared__ std::uint64_t highs[k_warps];
    for (int offset = 16; offset > 0; offset /= 2) {
        low += __shfl_xor_sync(~0U, low, offset);
        high += __shfl_xor_sync(~0U, high, offset);
    }
    if (threadIdx.x % 32 == 0) {
        lows[threadIdx.x / 32] = low;
        highs[threadIdx.x / 32] = high;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned warp = 1; warp < k_warps; ++warp) {
            low += lows[warp];
            high += highs[warp];
        }
    }
    __syncthreads();
}

} // namespace

/// `blocks` and `out` may lie in page-locked host memory. Any grid; k_fingerprint_threads threads a block.
extern "C" __global__ void __launch_bounds__(k_fingerprint_threads)
    gpu_sleep_fingerprint(const FingerprintBlock* blocks, Fingerprint* out, std::uint64_t count) {
    __shared__ FingerprintBlock block;
    for (std::uint64_t b = blockIdx.x; b < count; b += gridDim.x) {
        if (threadIdx.x == 0) block = blocks[b];
        __syncthreads();
        const auto base = block.address & ~std::uint64_t{sizeof(Word) - 1};
        const auto end = block.address + block.bytes;
        const auto words = (end - base + sizeof(Word) - 1) / sizeof(Word);
        const bool aligned = base == block.address && end % sizeof(Word) == 0;
        std::uint64_t low = 0;
        std::uint64_t high = 0;
        if (aligned) {
#pragma unroll 8
            for (std::uint64_t i = threadIdx.x; i < words; i += k_fingerprint_threads)
                accumulate(low, high, load_streaming(base + i * sizeof(Word)), i);
        } else {
            for (std::uint64_t i = threadIdx.x; i < words; i += k_fingerprint_threads)
                accumulate(low, high, load_edge(base + i * sizeof(Word), block), i);
        }
        reduce_block(low, high);
        if (threadIdx.x == 0) out[b] = {low, high};
    }
}
