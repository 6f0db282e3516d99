// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a call returns that is not made.

#pragma once

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {

/// What an intercepted call returns when the gate refuses it: what the driver itself would once the process
/// is ending.
[[nodiscard]] CUresult refused() noexcept;

} // namespace gpu_sleep::agent::intercepted
