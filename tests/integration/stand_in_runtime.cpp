// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What of the CUDA runtime callers of torch_memory_saver use, on the driver that there is. As the runtime
// does, it looks the driver's functions up.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace {

template <class... Arguments>
int call(const char* name, Arguments... arguments) {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(driver, name));
    return function ? function(arguments...) : 3;
}

} // namespace

extern "C" {
#pragma GCC visibility push(default)

int cudaMalloc(void** pointer, std::size_t bytes) {
    return call("cuMemAlloc_v2", reinterpret_cast<std::uint64_t*>(pointer), bytes);
}
int cudaFree(void* pointer) {
    return call("cuMemFree_v2", reinterpret_cast<std::uint64_t>(pointer));
}
int cudaGetDevice(int* device) {
    return call("cuCtxGetDevice", device);
}
int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    return call("cuMemGetInfo_v2", free, total);
}

#pragma GCC visibility pop
}
