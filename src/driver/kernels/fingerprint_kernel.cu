// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fingerprint kernel: reads memory once, at its full bandwidth, and writes a fingerprint for each block.
//
// Per 16 bytes a thread executes 8 wide multiply-adds, 16 additions and 5 instructions more. At 4.8 TB/s this
// is about a third of what the integer units of an H200 can do, so memory sets the pace.

#include "driver/kernels/fingerprint.hpp"
#include "driver/kernels/fingerprint_math.hpp"

namespace {

using namespace gpu_sleep::driver;

/// A quad that will not be read again soon: it should not push the program's data out of the cache.
__device__ Quad load_streaming(std::uint64_t address) {
    const auto value = __ldcs(reinterpret_cast<const uint4*>(address));
    return {{value.x, value.y, value.z, value.w}};
}

/// The quad at `index` of a block at any address; reads no aligned quad that holds nothing of the block.
__device__ Quad load_any(FingerprintBlock block, std::uint64_t index) {
    const auto address = block.address + index * sizeof(Quad);
    const auto left = block.bytes - index * sizeof(Quad);
    const auto bytes = left < sizeof(Quad) ? static_cast<unsigned>(left) : unsigned{sizeof(Quad)};
    const auto offset = static_cast<unsigned>(address % sizeof(Quad));
    const auto lower = load_streaming(address - offset);
    const auto upper =
        offset + bytes > sizeof(Quad) ? load_streaming(address - offset + sizeof(Quad)) : Quad{};
    return cut(lower, upper, offset, bytes);
}

__device__ void store_streaming(std::uint64_t address, Quad quad) {
    const auto& [x, y, z, w] = quad.words;
    __stcs(reinterpret_cast<uint4*>(address), uint4{x, y, z, w});
}

/// Returns this thread's sums of the block; `bits` gets each bit that is set in any of it.
template <bool copies>
__device__ ThreadSum sum_thread(FingerprintBlock block, const Quad* key, std::uint32_t& bits) {
    constexpr auto k_row_bytes = k_fingerprint_threads * sizeof(Quad);
    constexpr unsigned k_batch = 8; // loads under way at once
    ThreadSum sum{};
    const auto quads = (block.bytes + sizeof(Quad) - 1) / sizeof(Quad);
    unsigned row = 0;
    const auto take = [&](Quad quad) {
        if constexpr (copies)
            store_streaming(block.copy + row * k_row_bytes + threadIdx.x * sizeof(Quad), quad);
        accumulate(sum, quad, key + row++);
        bits |= quad.words[0] | quad.words[1] | quad.words[2] | quad.words[3];
    };
    if (block.address % sizeof(Quad) == 0) {
        const auto rows = static_cast<unsigned>(block.bytes / k_row_bytes);
        auto at = block.address + threadIdx.x * sizeof(Quad);
        for (unsigned batches = rows / k_batch; batches > 0; --batches, at += k_batch * k_row_bytes) {
            Quad batch[k_batch];
#pragma unroll
            for (unsigned i = 0; i < k_batch; ++i) batch[i] = load_streaming(at + i * k_row_bytes);
#pragma unroll
            for (unsigned i = 0; i < k_batch; ++i) take(batch[i]);
        }
    }
    for (; row * k_fingerprint_threads + threadIdx.x < quads;)
        take(load_any(block, row * k_fingerprint_threads + threadIdx.x));
    return sum;
}

/// The sum over the lanes of a warp; the result is valid in lane 0.
__device__ GroupSum sum_lanes(GroupSum sum) {
    for (unsigned offset = k_fingerprint_lanes / 2; offset > 0; offset /= 2) {
        std::uint64_t words[4];
        store(sum, words);
        GroupSum other;
        for (unsigned stream = 0; stream < 2; ++stream)
            other.streams[stream] = __shfl_down_sync(~0U, words[2 * stream], offset) |
                                    Wide{__shfl_down_sync(~0U, words[2 * stream + 1], offset)} << 64;
        add(sum, other);
    }
    return sum;
}

/// Copies the key to where threads read it quickest.
__device__ void fetch_key(FingerprintKey& to, const FingerprintKey& from) {
    constexpr unsigned k_words = sizeof(FingerprintKey) / sizeof(std::uint64_t);
    static_assert(k_words <= k_fingerprint_threads);
    if (threadIdx.x < k_words)
        reinterpret_cast<std::uint64_t*>(&to)[threadIdx.x] =
            reinterpret_cast<const std::uint64_t*>(&from)[threadIdx.x];
}

template <bool copies>
__device__ void take_fingerprints(const FingerprintBlock* blocks, Fingerprint* out, std::uint64_t count,
                                  const FingerprintKey& argument) {
    __shared__ alignas(16) FingerprintKey key; // a row in one load
    __shared__ FingerprintBlock block;
    __shared__ std::uint64_t sums[k_fingerprint_warps][4];
    const auto lane = threadIdx.x % k_fingerprint_lanes;
    const auto warp = threadIdx.x / k_fingerprint_lanes;
    fetch_key(key, argument);
    for (std::uint64_t b = blockIdx.x; b < count; b += gridDim.x) {
        if (threadIdx.x == 0) block = blocks[b];
        __syncthreads();
        std::uint32_t bits = 0;
        const auto sum = sum_thread<copies>(block, key.rows, bits);
        const auto of_warp = sum_lanes(group_part(sum.streams, key.lanes + 4 * lane));
        if (lane == 0) store(of_warp, sums[warp]);
        const bool is_zero = __syncthreads_or(bits != 0) == 0;
        if (warp != 0) continue; // no other writes `sums` before warp 0 is at the barrier above once more
        const auto part =
            lane < k_fingerprint_warps ? group_part(sums[lane], key.warps + 4 * lane) : GroupSum{};
        const auto whole = sum_lanes(part);
        if (lane != 0) continue;
        Fingerprint result;
        store(whole, result.words);
        result.is_zero = is_zero;
        out[b] = result;
    }
}

} // namespace

/// `blocks` and `out` may lie in page-locked host memory. Any grid; k_fingerprint_threads threads a block.
extern "C" __global__ void __launch_bounds__(k_fingerprint_threads, 2)
    gpu_sleep_fingerprint(const FingerprintBlock* blocks, Fingerprint* out, std::uint64_t count,
                          const __grid_constant__ FingerprintKey key) {
    take_fingerprints<false>(blocks, out, count, key);
}

/// The same, and what is read is also written to the blocks' copies.
extern "C" __global__ void __launch_bounds__(k_fingerprint_threads, 2)
    gpu_sleep_copy(const FingerprintBlock* blocks, Fingerprint* out, std::uint64_t count,
                   const __grid_constant__ FingerprintKey key) {
    take_fingerprints<true>(blocks, out, count, key);
}
