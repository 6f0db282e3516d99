// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What of the CUDA runtime callers of torch_memory_saver use, on the driver that there is. As the runtime
// does, it looks the driver's functions up.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <set>

namespace {

template <class... Arguments>
int call(const char* name, Arguments... arguments) {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(driver, name));
    return function ? function(arguments...) : 3;
}

/// What cudaHostAlloc() has made.
std::set<void*>& page_locked() {
    static auto* const s_memory = new std::set<void*>;
    return *s_memory;
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
int cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    const int status = call("cuMemHostAlloc", pointer, bytes, flags);
    if (status == 0) page_locked().insert(*pointer);
    return status;
}
int cudaFreeHost(void* pointer) {
    page_locked().erase(pointer);
    return call("cuMemFreeHost", pointer);
}
int cudaHostGetFlags(unsigned* flags, void* pointer) {
    *flags = 0;
    return page_locked().contains(pointer) ? 0 : 1;
}

#pragma GCC visibility pop
}
