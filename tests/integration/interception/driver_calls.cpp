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

const Control& control() {
    static const Control found = [] {
        static_cast<void>(cuda()); // loads it
        void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        return Control{
            reinterpret_cast<decltype(&::sim_register_kernel)>(find_or_die(library, "sim_register_kernel")),
            reinterpret_cast<decltype(&::sim_require_access)>(find_or_die(library, "sim_require_access")),
            reinterpret_cast<decltype(&::sim_free_bytes)>(find_or_die(library, "sim_free_bytes")),
            reinterpret_cast<decltype(&::sim_fault_counts)>(find_or_die(library, "sim_fault_counts")),
            reinterpret_cast<decltype(&::sim_fail)>(find_or_die(library, "sim_fail")),
            reinterpret_cast<decltype(&::sim_clear)>(find_or_die(library, "sim_clear")),
        };
    }();
    return found;
}

} // namespace gpu_sleep::test
