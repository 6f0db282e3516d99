// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The CUDA runtime's allocations, of a program that preloads this library. Source: CUDA Runtime API,
// cudaMalloc, cudaFree.

#include "torch_memory_saver/saver.hpp"

#include <cstddef>

namespace gpu_sleep::saver {
namespace {

// Values of cudaError_t.
constexpr int k_success = 0, k_no_memory = 2, k_no_runtime = 3, k_unknown = 999;

template <class Function>
Function* real(const char* name) {
    return reinterpret_cast<Function*>(runtime_function(name));
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) int cudaMalloc(void** pointer, std::size_t bytes) {
    auto* const allocate_plainly = real<int(void**, std::size_t)>("cudaMalloc");
    auto* const get_device = real<int(int*)>("cudaGetDevice");
    if (!allocate_plainly || !get_device) return k_no_runtime;
    if (!pointer || bytes == 0 || !config().is_region) return allocate_plainly(pointer, bytes);
    int device = 0;
    if (const int failure = get_device(&device)) return failure;
    switch (allocate(pointer, bytes, device)) {
    case GPU_SLEEP_OK: return k_success;
    case GPU_SLEEP_ERROR_OUT_OF_DEVICE_MEMORY:
    case GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY: return k_no_memory;
    default: return k_unknown;
    }
}

__attribute__((visibility("default"))) int cudaFree(void* pointer) {
    const auto status = pointer ? release(pointer) : GPU_SLEEP_ERROR_NOT_OWNED;
    if (status == GPU_SLEEP_OK) return k_success;
    if (status != GPU_SLEEP_ERROR_NOT_OWNED) return k_unknown;
    auto* const free_plainly = real<int(void*)>("cudaFree");
    return free_plainly ? free_plainly(pointer) : k_no_runtime;
}

} // extern "C"
} // namespace gpu_sleep::saver
