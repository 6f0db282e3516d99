// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Arrays that the driver made.

#pragma once

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {

/// The driver made an array, or a mipmapped one of so many levels. `array` is the handle: no address in
/// memory of the program's.
void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept;

} // namespace gpu_sleep::agent::intercepted
