// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What fingerprint_bench compares with: reads the same memory in the same order as the fingerprint kernel,
// and does next to nothing with it.

#include "driver/kernels/fingerprint.hpp"

/// Writes to `out` as good as never.
extern "C" __global__ void __launch_bounds__(gpu_sleep::driver::k_fingerprint_threads)
    read_blocks(const gpu_sleep::driver::FingerprintBlock* blocks, std::uint64_t count, unsigned* out) {
    using namespace gpu_sleep::driver;
    for (std::uint64_t b = blockIdx.x; b < count; b += gridDim.x) {
        const auto base = blocks[b].address + threadIdx.x * sizeof(Quad);
        unsigned bits = 0;
#pragma unroll 8
        for (unsigned row = 0; row < k_fingerprint_rows; ++row) {
            const auto value = __ldcs(reinterpret_cast<const uint4*>(
                base + std::uint64_t{row} * k_fingerprint_threads * sizeof(Quad)));
            bits ^= value.x ^ value.y ^ value.z ^ value.w;
        }
        if (bits == 0x5EED5EED) *out = bits; // so that the compiler does not leave the reads out
    }
}
