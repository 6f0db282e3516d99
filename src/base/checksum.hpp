// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checksum of contents at rest: detects damage by disks, memory and truncation. Not cryptographic.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpu_sleep {

/// XXH64 of `bytes` with seed 0. Our own implementation, because it is one page and saves a library inside
/// the host process. Without special instructions it is as fast as CRC-32C with them, and it is twice as
/// long. Thread-safe. Source: xxHash fast digest algorithm, version 0.1.1, "XXH64 algorithm description".
[[nodiscard]] std::uint64_t xxh64(std::span<const std::byte> bytes) noexcept;

} // namespace gpu_sleep
