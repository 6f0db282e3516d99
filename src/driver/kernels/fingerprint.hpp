// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Fingerprints of memory: the arguments and results of the kernel, and the same function for the host.

#pragma once

#include <cstdint>

namespace gpu_sleep::driver {

/// The value of a keyed function of the bytes of a block. Two blocks of equal length that differ have the
/// same fingerprint with a probability of at most 3 / 2^128 over the choice of the key, whatever they hold,
/// as long as they were not chosen by somebody who knows the key; fingerprint_math.hpp has the proof.
/// Fingerprints of blocks of different lengths, or by different keys, are not compared.
struct Fingerprint {
    std::uint64_t words[4] = {};
    /// Whether all bytes of the block are zero: found exactly, from the bytes and not from the words above.
    bool is_zero = false;
    friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// Memory to fingerprint: any address, and a length of at most k_fingerprint_block_bytes. The aligned 16
/// bytes around each of its bytes must be readable; what lies outside of the block does not count, nor does
/// where the block lies.
struct FingerprintBlock {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    /// Where the kernel `gpu_sleep_copy` writes what it reads. For it, all three are multiples of 16.
    std::uint64_t copy = 0;
};

/// Threads of one block of the kernels `gpu_sleep_fingerprint` and `gpu_sleep_copy`, both (blocks, out,
/// count, key).
inline constexpr unsigned k_fingerprint_threads = 512;
inline constexpr unsigned k_fingerprint_lanes = 32;
inline constexpr unsigned k_fingerprint_warps = k_fingerprint_threads / k_fingerprint_lanes;

/// 16 bytes of memory.
struct Quad {
    std::uint32_t words[4];
};

/// Quads of a block that one thread reads.
inline constexpr unsigned k_fingerprint_rows = 128;

/// Blocks are cut at this size: large enough to hide its overhead, small enough to locate damage.
inline constexpr std::uint64_t k_fingerprint_block_bytes =
    std::uint64_t{sizeof(Quad)} * k_fingerprint_threads * k_fingerprint_rows;
static_assert(k_fingerprint_block_bytes == std::uint64_t{1} << 20);

/// The key of the function, random and independent throughout. An argument of the kernel, of which all
/// devices take 4 KiB.
struct FingerprintKey {
    Quad rows[k_fingerprint_rows + 3];
    std::uint64_t lanes[4 * k_fingerprint_lanes + 2];
    std::uint64_t warps[4 * k_fingerprint_warps + 2];
};
static_assert(sizeof(FingerprintKey) + 32 <= 4096);

/// Does on the host what the kernel does: sets `out[i]` to the fingerprint of `blocks[i]`. Thread-safe.
void fingerprint_on_host(const FingerprintKey& key, const FingerprintBlock* blocks, Fingerprint* out,
                         std::uint64_t count);

} // namespace gpu_sleep::driver
