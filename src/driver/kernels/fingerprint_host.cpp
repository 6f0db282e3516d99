// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fingerprint on the host, word for word what the kernel computes.

#include "driver/kernels/fingerprint.hpp"

#include "driver/kernels/fingerprint_math.hpp"

#include <algorithm>
#include <cstring>

namespace gpu_sleep::driver {
namespace {

constexpr std::uint64_t k_word_bytes = sizeof(Word);

Fingerprint fingerprint(FingerprintBlock block) {
    Fingerprint sum;
    const auto end = block.address + block.bytes;
    const auto base = block.address & ~(k_word_bytes - 1);
    for (auto at = base; at < end; at += k_word_bytes) {
        const auto from = std::max(at, block.address);
        const auto to = std::min(at + k_word_bytes, end);
        Word word{};
        std::memcpy(reinterpret_cast<std::byte*>(&word) + (from - at), reinterpret_cast<const void*>(from),
                    to - from);
        accumulate(sum.low, sum.high, word, (at - base) / k_word_bytes);
    }
    return sum;
}

} // namespace

void fingerprint_on_host(const FingerprintBlock* blocks, Fingerprint* out, std::uint64_t count) {
    std::transform(blocks, blocks + count, out, fingerprint);
}

} // namespace gpu_sleep::driver
