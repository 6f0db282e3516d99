// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which context the driver has said to have failed: who allocates in it has to be told so, also where that
// would take no call of the driver. A file of its own, for every hook includes it.

#pragma once

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {

/// The driver has answered with `status`, other than success, to a call of this thread.
void note_failure(CUresult status) noexcept;

/// What the driver says of `context`, if that is the last that has failed; otherwise success.
[[nodiscard]] CUresult failure_of(CUcontext context) noexcept;

} // namespace gpu_sleep::agent::intercepted
