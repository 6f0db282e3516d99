// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How a call ends that finds a failure.

#pragma once

#include <cuda.h>

/// Ends the function with the status of `call`, if that fails.
#define SIM_TRY(call)                                                                                        \
    if (const auto status_of_call = call; status_of_call != CUDA_SUCCESS) return status_of_call

/// Names what is found; if nothing is, the function ends with `otherwise`.
#define SIM_FIND(name, found, otherwise)                                                                     \
    const auto name = found;                                                                                 \
    if (!name) return otherwise
