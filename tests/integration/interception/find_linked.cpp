// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver as programs reach it that are linked to libcuda: each call is bound at its first use.

#include "driver_calls.hpp"

namespace gpu_sleep::test {

DriverCalls find_driver() {
    DriverCalls calls;
#define GPU_SLEEP_TEST_FIND(name) calls.name = [](auto... arguments) { return ::name(arguments...); };
    GPU_SLEEP_TEST_CALLS(GPU_SLEEP_TEST_FIND)
    return calls;
}

} // namespace gpu_sleep::test
