// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the driver itself would say.

#include "intercepted/answer.hpp"

#include "gate/gate.hpp"

namespace gpu_sleep::agent::intercepted {

CUresult refused() noexcept {
    return gate::Gate::instance().is_abandoned() ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_SYSTEM_NOT_READY;
}

} // namespace gpu_sleep::agent::intercepted
