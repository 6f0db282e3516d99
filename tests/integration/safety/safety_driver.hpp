// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the small programs share: a context and some memory, and lines in and out.

#pragma once

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

namespace gpu_sleep::test {

inline constexpr std::size_t k_bytes = std::size_t{4} << 20;

/// Ends the program when a call of the driver that ought to work did not.
inline void check(CUresult status, const char* call) {
    if (status == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s returned %d\n", call, static_cast<int>(status));
    std::_Exit(99);
}

/// Says `text` and waits for a line; that line.
inline std::string say_and_wait(const std::string& text) {
    std::cout << text << std::endl;
    std::string line;
    std::getline(std::cin, line);
    return line;
}

inline CUcontext start_cuda() {
    CUcontext context = nullptr;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    return context;
}

inline CUdeviceptr allocate(std::size_t bytes = k_bytes) {
    CUdeviceptr address = 0;
    check(cuMemAlloc(&address, bytes), "cuMemAlloc");
    check(cuMemsetD8(address, 0x5A, bytes), "cuMemsetD8");
    return address;
}

/// What a touch of the memory returns.
inline int touch(CUdeviceptr address) {
    return cuMemsetD8(address, 0x5A, k_bytes);
}

inline bool is_intact(CUdeviceptr address) {
    std::string bytes(k_bytes, '\0');
    check(cuMemcpyDtoH(bytes.data(), address, k_bytes), "cuMemcpyDtoH");
    return bytes == std::string(k_bytes, 0x5A);
}

} // namespace gpu_sleep::test
