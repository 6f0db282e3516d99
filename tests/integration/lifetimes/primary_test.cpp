// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Primary contexts of an intercepted program, released while somebody else holds them for a moment.

#include "devices.hpp"
#include "driver/api.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr char k_release[] = "cuDevicePrimaryCtxRelease";
constexpr char k_copy[] = "cuMemcpyDtoH";
constexpr std::chrono::milliseconds k_delay{150};

} // namespace

TEST_CASE_METHOD(Devices, "Primary contexts: of two releases at once one is the last", "[lifetimes]") {
    allocate();
    static_cast<void>(retain_primary(0));
    REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    sim_delay(k_release, std::chrono::microseconds(k_delay).count());
    auto slow = CUDA_ERROR_UNKNOWN;
    const auto calls = sim_calls(k_release);
    std::thread other([&] { slow = cuDevicePrimaryCtxRelease(0); });
    CHECK(await_call(k_release, calls));
    sim_delay(k_release, 0);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    other.join();
    CHECK(slow == CUDA_SUCCESS);
    CHECK(held() == 0); // the memory went with the context
}

TEST_CASE_METHOD(Devices, "Primary contexts: one that is released too often is not held for it",
                 "[lifetimes]") {
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    allocate();
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(held() == 0); // the memory went with the context
}

TEST_CASE_METHOD(Devices, "Primary contexts: no event is kept of one whose end is not seen", "[lifetimes]") {
    const auto driver = gpu_sleep::driver::Api::load(); // behind the agent's back
    REQUIRE(driver);
    const auto free_pooled = [] {
        const auto calls = sim_calls("cuEventCreate");
        CHECK(cuMemFree(allocate_async(nullptr)) == CUDA_SUCCESS);
        return sim_calls("cuEventCreate") - calls;
    };
    CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
    auto* const own = make_context(1);
    CHECK(free_pooled() == 1); // of the context in which it was allocated
    CUcontext unseen = nullptr;
    REQUIRE(driver->cuDevicePrimaryCtxRetain(&unseen, 1) == CUDA_SUCCESS);
    CHECK(free_pooled() == 0);
    CHECK(driver->cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[1], 1) == CUDA_SUCCESS);
    REQUIRE(contexts[1] == unseen);
    CHECK(free_pooled() == 1);
    CHECK(free_pooled() == 0);
    CHECK(cuCtxDestroy(own) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices,
                 "Primary contexts: one that ends while a copy is let through takes its memory with it",
                 "[lifetimes]") {
    auto* const own = make_context(1);
    const auto there = allocate();
    REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
    allocate();
    REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    sim_delay(k_release, std::chrono::microseconds(k_delay).count());
    auto copied = CUDA_ERROR_UNKNOWN;
    const auto calls = sim_calls(k_copy);
    std::thread copier([&] {
        cuCtxSetCurrent(contexts[0]);
        std::vector<std::byte> bytes(k_bytes);
        copied = cuMemcpyDtoH(bytes.data(), there, k_bytes); // refused at first
    });
    CHECK(await_call(k_copy, calls));
    CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
    copier.join();
    sim_clear();
    CHECK(copied == CUDA_SUCCESS);
    CHECK(held() == k_bytes);
    CHECK(cuCtxDestroy(own) == CUDA_SUCCESS);
    CHECK(held() == 0);
}
