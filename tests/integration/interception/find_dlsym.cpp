// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver as programs reach it that open libcuda and look each symbol up in it, as cuBLAS does.

#include "driver_calls.hpp"

#include <dlfcn.h>

namespace gpu_sleep::test {

DriverCalls find_driver() {
    DriverCalls calls;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define GPU_SLEEP_TEST_FIND(name)                                                                            \
    calls.name = reinterpret_cast<decltype(&::name)>(find_or_die(library, GPU_SLEEP_TEST_SYMBOL(name)));
    GPU_SLEEP_TEST_CALLS(GPU_SLEEP_TEST_FIND)
    return calls;
}

} // namespace gpu_sleep::test
