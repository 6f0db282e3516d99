// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Primary and green contexts of an intercepted program, as they begin and end, or while somebody else holds
// them.

#include "devices.hpp"
#include "driver/api.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr char k_release[] = "cuDevicePrimaryCtxRelease";
constexpr char k_copy[] = "cuMemcpyDtoH";
constexpr std::chrono::milliseconds k_release_takes{150};

CUgreenCtx make_green(CUcontext& context) {
    CUgreenCtx green = nullptr;
    REQUIRE(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
    REQUIRE(cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS);
    return green;
}

CUcontext owner_of(CUdeviceptr address) {
    CUcontext context = nullptr;
    CHECK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS);
    return context;
}

} // namespace

TEST_CASE_METHOD(Devices, "Primary contexts: of two releases at once one is the last") {
    allocate();
    static_cast<void>(retain_primary(0));
    REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    sim_delay(k_release, std::chrono::microseconds(k_release_takes).count());
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

TEST_CASE_METHOD(Devices, "Primary contexts: one that is released too often is not held for it") {
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    allocate();
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(held() == 0); // the memory went with the context
}

TEST_CASE_METHOD(Devices, "Primary contexts: no event is kept of one whose end is not seen") {
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

TEST_CASE_METHOD(Devices, "Primary contexts: one that ends while a copy is let through takes its memory") {
    auto* const own = make_context(1);
    const auto there = allocate();
    REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
    allocate();
    REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    sim_delay(k_release, std::chrono::microseconds(k_release_takes).count());
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

TEST_CASE_METHOD(Devices, "Green contexts: memory outlives the one that it was allocated in") {
    CUcontext context = nullptr;
    auto* const green = make_green(context);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    const auto plain = allocate();
    CHECK(owner_of(plain) == contexts[0]);
    const auto stream = make_stream();
    const auto freed = allocate_async(stream);
    const auto kept = allocate_async(stream);
    const Gate gate(stream);
    REQUIRE(launch(kernel("sim_fill"), stream, plain, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(freed, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(make_stream(), CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    CHECK(cuGreenCtxDestroy(green) ==
          CUDA_SUCCESS); // with its streams and their captures, but not their work
    CHECK(held() == 3 * k_bytes);
    gate.release();
    CHECK(cuMemFree(plain) == CUDA_SUCCESS); // waits for what uses it
    CHECK(cuMemFree(kept) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(held() == 0);
    CHECK(cuMemFreeAsync(allocate_async(nullptr), nullptr) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Green contexts: one that stays keeps its capture") {
    CUcontext context = nullptr;
    auto* const green = make_green(context);
    CUstream stream = nullptr;
    REQUIRE(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    const auto address = allocate();
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    sim_fail("cuGreenCtxDestroy", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    CHECK(cuGreenCtxDestroy(green) == CUDA_ERROR_UNKNOWN);
    sim_clear();
    CHECK(cuDevicePrimaryCtxReset(0) == CUDA_ERROR_NOT_PERMITTED);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(held() == k_bytes); // waits for the capture
    CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(Devices, "Green contexts: one that is not converted holds the primary context, too") {
    CUgreenCtx green = nullptr;
    sim_fail("cuCtxFromGreenCtx", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE); // when the agent asks
    REQUIRE(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
    sim_clear();
    allocate();
    REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(held() == k_bytes);
    CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
    CHECK(held() == 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Green contexts: the last to hold the primary context ends it") {
    CUcontext context = nullptr;
    auto* const green = make_green(context);
    const auto address = allocate();
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(cuMemsetD8(address, 1, k_bytes) == CUDA_SUCCESS); // it is still there
    REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
    CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
    CHECK(held() == 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFree(allocate()) == CUDA_SUCCESS);
}
