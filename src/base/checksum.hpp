// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checksum of contents at rest: finds what disks, memory and cut files do to bytes. Not for secrets.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpu_sleep {

/// XXH64 of `bytes` with seed 0. Our own, because it is one page: as fast without special instructions as
/// CRC-32C is with them, twice as long, and no library more inside somebody else's process. Thread-safe.
/// Source: xxHash fast digest algorithm, version 0.1.1, "XXH64 algorithm description".
[[nodiscard]] std::uint64_t xxh64(std::span<const std::byte> bytes) noexcept;

} // namespace gpu_sleep
