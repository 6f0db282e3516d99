// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the driver's rules share: a context on whatever libcuda.so.1 the loader gives. Each case is a rule of
// the driver API that programs may rely on, and has a process of its own (driver_rules.py), so that an error
// which loses the context harms no other. What the documentation leaves undefined, such as handles of what
// was destroyed, is none.

#pragma once

#include "support/driver_testing.hpp"

#include <dlfcn.h>

namespace gpu_sleep::driver_rules {

using namespace driver_testing;

/// What the simulated driver tells beside the driver API. No symbol of it is linked.
struct Simulated {
    decltype(&sim_live_objects) live_objects;
    decltype(&sim_fault_counts) fault_counts;
    decltype(&sim_free_bytes) free_bytes;
};

/// Null on a real driver, and under gpu-run, whose agent has things of its own: checks of these figures are
/// left out there.
[[nodiscard]] inline const Simulated* simulated() {
    if (::dlsym(RTLD_DEFAULT, "gpu_sleep_sleep")) return nullptr;
    static const Simulated functions{
        reinterpret_cast<decltype(&sim_live_objects)>(::dlsym(RTLD_DEFAULT, "sim_live_objects")),
        reinterpret_cast<decltype(&sim_fault_counts)>(::dlsym(RTLD_DEFAULT, "sim_fault_counts")),
        reinterpret_cast<decltype(&sim_free_bytes)>(::dlsym(RTLD_DEFAULT, "sim_free_bytes"))};
    return functions.live_objects ? &functions : nullptr;
}

/// Initialises the driver and makes the primary context of a device current to this thread. On the simulated
/// driver no memory of it may be left afterwards, unless an error lost the context.
class Session {
public:
    explicit Session(CUdevice device = 0) : device_(device) {
        // A kernel that is loaded at its first launch may wait for a stream that the test holds back.
        ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        if (const auto* sim = simulated()) before_ = sim->live_objects();
        REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
        REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session() {
        const bool is_lost = cuCtxSynchronize() != CUDA_SUCCESS;
        CUcontext popped = nullptr;
        cuCtxPopCurrent(&popped);
        cuDevicePrimaryCtxRelease(device_);
        const auto* sim = simulated();
        if (sim && !is_lost) check_nothing_left(before_, sim->live_objects());
    }

    CUcontext context = nullptr;

private:
    CUdevice device_;
    sim_live before_{};
};

struct OnStream : Session {
    const CUstream stream = make_stream();
};
struct OnRange : Session {
    Range range;
};

[[nodiscard]] inline int device_count() {
    int count = 0;
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    return count;
}

/// For cases about device 1; they end with `return` where it is false.
[[nodiscard]] inline bool has_two_devices() {
    if (device_count() >= 2) return true;
    test::skip("there is one device");
    return false;
}

/// Free memory of the current context's device, for all who share it.
[[nodiscard]] inline std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    REQUIRE(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
    return free;
}

[[nodiscard]] inline std::uint32_t first_word(CUdeviceptr address) {
    return read<std::uint32_t>(address, 1).front();
}

} // namespace gpu_sleep::driver_rules
