// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own mappings of virtual memory.

#pragma once

#include "intercepted/answer.hpp"

#include <cuda.h>

#include <cstddef>

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) noexcept;
[[nodiscard]] Answer unmap(CUdeviceptr address, std::size_t bytes) noexcept;
[[nodiscard]] Answer set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                                std::size_t count) noexcept;
/// Whether the program has something mapped there, awake or asleep.
[[nodiscard]] bool has_mappings_in(CUdeviceptr address, std::size_t bytes) noexcept;
/// Whether memory that the program mapped itself sleeps, which it cannot unmap.
[[nodiscard]] bool own_mappings_sleep() noexcept;

} // namespace gpu_sleep::agent::intercepted
