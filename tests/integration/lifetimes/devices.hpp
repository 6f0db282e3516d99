// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the tests of lifetimes share: two devices to work on, and what is allocated there.

#pragma once

#include "support/simulated_driver/testing.hpp"

namespace gpu_sleep::test {

using namespace sim::testing;

inline constexpr std::size_t k_bytes = std::size_t{4} << 20;

inline CUmemoryPool default_pool(CUdevice device) {
    CUmemoryPool pool = nullptr;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS);
    return pool;
}

/// Of the first device.
inline CUmemoryPool make_pool() {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    return pool;
}

inline CUdeviceptr allocate_async(CUstream stream) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocAsync(&address, k_bytes, stream) == CUDA_SUCCESS);
    return address;
}

inline CUdeviceptr allocate() {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc(&address, k_bytes) == CUDA_SUCCESS);
    return address;
}

inline std::uint64_t used(CUmemoryPool pool) {
    cuuint64_t bytes = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes) == CUDA_SUCCESS);
    return bytes;
}

inline std::uint64_t held() {
    return sim_live_objects().physical_bytes;
}

/// Waits until `name` was called more than `calls` times. False: not within a patient moment.
inline bool await_call(const char* name, std::uint64_t calls) {
    constexpr std::chrono::milliseconds k_look{1};
    for (int i = 0; i < 5'000 && sim_calls(name) <= calls; ++i) std::this_thread::sleep_for(k_look);
    return sim_calls(name) > calls;
}

/// Both devices' primary contexts; the first's is current. What a test leaves in pools goes with its end.
class Devices {
public:
    Devices() {
        // Where nothing is intercepted a free waits for work of the test that frees, for ever.
        REQUIRE(std::getenv("GPU_SLEEP_CAPTURE"));
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        for (CUdevice device = 0; device < 2; ++device)
            REQUIRE(cuDevicePrimaryCtxRetain(&contexts[device], device) == CUDA_SUCCESS);
        REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
        sim_reset_counts();
    }
    Devices(const Devices&) = delete;
    Devices& operator=(const Devices&) = delete;
    ~Devices() {
        for (CUdevice device = 0; device < 2; ++device) {
            cuCtxSetCurrent(contexts[device]);
            cuCtxSynchronize();
            cuMemPoolTrimTo(default_pool(device), 0);
            cuCtxSetCurrent(nullptr);
            cuDevicePrimaryCtxRelease(device);
        }
        CHECK(sim_fault_counts().illegal_accesses == 0);
        CHECK(held() == 0);
        CHECK(sim_live_objects().contexts == 0);
    }

    CUcontext contexts[2] = {};
};

inline CUcontext make_context(CUdevice device) {
    CUcontext context = nullptr;
    CUctxCreateParams parameters{};
    REQUIRE(cuCtxCreate(&context, &parameters, 0, device) == CUDA_SUCCESS);
    return context;
}

} // namespace gpu_sleep::test
