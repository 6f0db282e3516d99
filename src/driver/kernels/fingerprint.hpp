// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Fingerprints of memory: the arguments and results of the kernel, and the same function for the host.

#pragma once

#include <cstdint>

namespace gpu_sleep::driver {

/// 128 bits that change when any bit of a block changes (a missed change of several words: about 1 in 2^128).
/// Not cryptographic: it guards against accidents, not against forgery.
struct Fingerprint {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// Memory to fingerprint: any address and length; the 16-byte words that hold its ends must be readable.
struct FingerprintBlock {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
};

/// Blocks are cut at this size: large enough to hide its overhead, small enough to locate damage.
inline constexpr std::uint64_t k_fingerprint_block_bytes = std::uint64_t{1} << 20;

/// Threads of one block of the kernel `gpu_sleep_fingerprint(blocks, out, count)`.
inline constexpr unsigned k_fingerprint_threads = 256;

/// What the kernel computes, on the host: `out[i]` is the fingerprint of `blocks[i]`. Thread-safe.
void fingerprint_on_host(const FingerprintBlock* blocks, Fingerprint* out, std::uint64_t count);

} // namespace gpu_sleep::driver
