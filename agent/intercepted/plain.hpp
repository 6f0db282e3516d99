// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Plain memory: cuMemAlloc and its like. Source: CUDA Driver API, Memory Management.

#pragma once

#include "intercepted/answer.hpp"

#include <cuda.h>

#include <cstddef>

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer allocate(CUdeviceptr* address, std::size_t bytes, Left& left) noexcept;
[[nodiscard]] Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned element_bytes, Left& left) noexcept;
/// Waits for the work of the memory's context, as the driver's own does.
[[nodiscard]] Answer free(CUdeviceptr address) noexcept;

} // namespace gpu_sleep::agent::intercepted
