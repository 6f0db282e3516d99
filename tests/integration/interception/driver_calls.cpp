// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is the same in every build of the capture program.

#include "driver_calls.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace gpu_sleep::test {

void* find_or_die(void* library, const char* symbol) {
    void* const found = ::dlsym(library, symbol);
    if (!found) {
        std::fprintf(stderr, "%s is missing\n", symbol);
        std::_Exit(EXIT_FAILURE);
    }
    return found;
}

const DriverCalls& cuda() {
    static const DriverCalls found = find_driver();
    return found;
}

void* find_control(const char* symbol) {
    static_cast<void>(cuda()); // loads it
    static void* const s_library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return find_or_die(s_library, symbol);
}

} // namespace gpu_sleep::test
