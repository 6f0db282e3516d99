// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Green contexts of an intercepted program, as they begin and end.

#include "devices.hpp"

using namespace gpu_sleep::test;

namespace {

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

TEST_CASE_METHOD(Devices, "Green contexts: memory outlives the one that it was allocated in", "[lifetimes]") {
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
    const auto other = allocate_async(nullptr);
    CHECK(cuMemFreeAsync(other, nullptr) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Green contexts: one that stays keeps its capture", "[lifetimes]") {
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

TEST_CASE_METHOD(Devices,
                 "Green contexts: one that the driver does not convert holds the primary context too",
                 "[lifetimes]") {
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

TEST_CASE_METHOD(Devices, "Green contexts: the last to hold the primary context ends it", "[lifetimes]") {
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
