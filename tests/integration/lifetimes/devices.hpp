// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the tests of lifetimes share: two devices to work on, and what is allocated there.

#pragma once

#include "support/simulated_driver/testing.hpp"

namespace gpu_sleep::test {

using namespace sim::testing;

inline constexpr std::size_t k_bytes = std::size_t{4} << 20;

inline CUdeviceptr allocate_async(CUstream stream) {
    return driver_testing::allocate_async(stream, k_bytes);
}

inline CUdeviceptr allocate() {
    return driver_testing::allocate(k_bytes);
}

inline std::uint64_t used(CUmemoryPool pool) {
    return number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
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
class Devices : NotCopied {
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

/// Memory of device 1 with random bytes; device 0 is current before and afterwards.
struct There : NotCopied {
    explicit There(const Devices& devices) {
        REQUIRE(cuCtxSetCurrent(devices.contexts[1]) == CUDA_SUCCESS);
        address = allocate();
        REQUIRE(cuMemcpyHtoD(address, bytes.data(), k_bytes) == CUDA_SUCCESS);
        REQUIRE(cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS);
    }
    ~There() { CHECK(cuMemFree(address) == CUDA_SUCCESS); }
    /// Whether memory has the same bytes.
    [[nodiscard]] bool is_in(CUdeviceptr other) const {
        std::vector<std::byte> copy(k_bytes);
        REQUIRE(cuMemcpyDtoH(copy.data(), other, k_bytes) == CUDA_SUCCESS);
        return copy == bytes;
    }

    CUdeviceptr address = 0;
    std::vector<std::byte> bytes = random_bytes(k_bytes);
};

struct OnStream : Devices {
    const CUstream stream = make_stream();
};

} // namespace gpu_sleep::test
