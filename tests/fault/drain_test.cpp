// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for the device has a limit, whatever the driver can do.

#include "support/engine_fixture.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;
using namespace std::chrono_literals;

TEST_CASE("Drain: work that does not end is given up in time, on drivers old and new", "[drain]") {
    EngineFixture fixture;
    driver::Api api = fixture.api();
    if (GENERATE(false, true)) api.cuCtxRecordEvent = nullptr; // a driver before 12.5
    const sim::testing::Session session;
    const auto stream = sim::testing::make_stream();
    const std::vector<CUcontext> contexts{session.context};

    driver::DrainLimits limits;
    {
        const sim::testing::Gate gate(stream); // work that waits
        const auto start = Clock::now();
        limits.captures = limits.work = start + 50ms;
        CHECK(driver::drain(api, contexts, limits).error().code == ErrorCode::timed_out);
        CHECK(Clock::now() - start >= 50ms);
        CHECK(Clock::now() - start < 2s);
        limits.captures = limits.work = Clock::now() + 60s;
        limits.keep_going = [] { return false; };
        CHECK(driver::drain(api, contexts, limits).error().code == ErrorCode::cancelled);
        CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    }
    limits.keep_going = [] { return true; };
    CHECK(driver::drain(api, contexts, limits));
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
}
