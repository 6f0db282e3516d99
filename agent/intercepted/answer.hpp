// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What an intercepted call answers.

#pragma once

#include <cuda.h>
#include <optional>

/// All functions of this module are thread-safe, and what intercepted calls call lets nothing cross: what
/// fails inside returns a status of the driver. None needs the agent to run; without it everything is left to
/// the driver.

namespace gpu_sleep::agent::intercepted {

/// The status to return, or nothing: the call is the driver's.
using Answer = std::optional<CUresult>;
/// What becomes of an allocation that is left to the driver because the least size, or a rule, says so.
struct Left {
    const char* reason = nullptr; ///< null for any other: nobody counts it
    CUcontext context = nullptr;
    int device = 0;
    CUmemoryPool pool = nullptr; ///< of which it is; null: plain memory
};

/// What a call returns that would need sleeping memory and cannot wait for it.
inline constexpr CUresult k_sleeps = CUDA_ERROR_SYSTEM_NOT_READY;

/// What an intercepted call returns when the gate refuses it: what the driver itself would once the process
/// is ending.
[[nodiscard]] CUresult refused() noexcept;

} // namespace gpu_sleep::agent::intercepted
