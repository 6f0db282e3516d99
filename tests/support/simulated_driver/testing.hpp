// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What tests on the simulated driver share: a context to work in, and what driver_testing.hpp has.

#pragma once

#include "support/driver_testing.hpp"
#include "support/not_copied.hpp"

namespace gpu_sleep::sim::testing {

using namespace driver_testing;

/// Initialises the driver and makes the primary context of a device current to this thread. Afterwards
/// nothing of it may be left, and faults and counts are as new.
class Session : test::NotCopied {
public:
    explicit Session(CUdevice device = 0) : device_(device) {
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        sim_clear();
        sim_reset_counts();
        before_ = sim_live_objects();
        REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
        REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    }
    ~Session() {
        sim_clear();
        CUcontext popped = nullptr;
        cuCtxPopCurrent(&popped);
        cuDevicePrimaryCtxRelease(device_);
        check_nothing_left(before_, sim_live_objects());
    }

    CUcontext context = nullptr;

private:
    CUdevice device_;
    sim_live before_{};
};

} // namespace gpu_sleep::sim::testing
