// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver as the CUDA runtime reaches it: one dlsym, then everything by the look-up that this gave, in the
// order that was seen. With INTERCEPTED_PROGRAM_PER_THREAD=1 it asks for the symbols of a per-thread default
// stream.

#include "driver_calls.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpu_sleep::test {
namespace {

using LookUp = decltype(&::cuGetProcAddress);

/// As of which the name means the symbol that cuda.h uses.
int version_of(const char* name) {
    return std::strcmp(name, "cuCtxSynchronize") == 0 ? 12000 : 13000;
}

cuuint64_t flags() {
    const char* wanted = std::getenv("INTERCEPTED_PROGRAM_PER_THREAD");
    return wanted && std::strcmp(wanted, "1") == 0 ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                   : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
}

void* ask(LookUp look_up, const char* name, int version) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult result{};
    if (look_up(name, &found, version, flags(), &result) != CUDA_SUCCESS || (!found && *name != '\0')) {
        std::fprintf(stderr, "%s is missing\n", name);
        std::_Exit(EXIT_FAILURE);
    }
    return found;
}

} // namespace

DriverCalls find_driver() {
    DriverCalls calls;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto first =
        reinterpret_cast<LookUp>(find_or_die(library, GPU_SLEEP_TEST_SYMBOL(cuGetProcAddress)));
    ask(first, "", 0);
    ask(first, "cuGetProcAddress", 11030);
    const auto look_up = reinterpret_cast<LookUp>(ask(first, "cuGetProcAddress", 12000));
#define GPU_SLEEP_TEST_FIND(name)                                                                            \
    calls.name = reinterpret_cast<decltype(&::name)>(ask(look_up, #name, version_of(#name)));
    GPU_SLEEP_TEST_CALLS(GPU_SLEEP_TEST_FIND)
    return calls;
}

} // namespace gpu_sleep::test
