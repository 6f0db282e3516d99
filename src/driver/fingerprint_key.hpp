// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The key of the fingerprints that this process takes, and the compiled kernels that take them.

#pragma once

#include "base/error.hpp"
#include "driver/kernels/fingerprint.hpp"

#include <sys/random.h>
#include <sys/types.h>

#include <cstddef>

namespace gpu_sleep::driver {

/// A source of random bytes that answers as getrandom(2) does.
using RandomSource = ssize_t (*)(void* to, std::size_t bytes, unsigned flags);

/// A new key. Errors: io_failed. Source: getrandom(2).
[[nodiscard]] Result<FingerprintKey> make_fingerprint_key(RandomSource source = ::getrandom);

/// The key of this process, made at the first call that succeeds; it never changes and is never freed. A
/// child that was forked later has the same. Thread-safe, without a lock that a fork could leave taken.
/// Errors: io_failed, out_of_host_memory; the next call tries again.
[[nodiscard]] Result<const FingerprintKey*> process_fingerprint_key();

/// A fat binary for cuModuleLoadData, with machine code for current GPUs and PTX for later ones. Static.
[[nodiscard]] const void* kernel_image() noexcept;

inline constexpr const char* k_fingerprint_kernel = "gpu_sleep_fingerprint";
inline constexpr const char* k_copy_kernel = "gpu_sleep_copy";

} // namespace gpu_sleep::driver
