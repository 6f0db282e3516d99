// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams and events: later, in order, and waited for.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE_METHOD(OnRange, "Driver: streams work in order, and later than they are given work",
                 "[driver_rules]") {
    const auto stream = make_stream();
    const auto add = kernel("sim_add");
    std::vector<std::uint32_t> out(4);
    const Gate gate(stream);
    REQUIRE(cuMemsetD32Async(range.address, 5, 4, stream) == CUDA_SUCCESS);
    REQUIRE(launch(add, stream, range.address, std::uint64_t{4}, 2U) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    gate.release();
    REQUIRE(cuMemcpyDtoHAsync(out.data(), range.address, 16, stream) == CUDA_SUCCESS);
    CHECK(out == std::vector<std::uint32_t>(4, 7));
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnRange, "Driver: a page-locked copy reads and writes when it is executed",
                 "[driver_rules]") {
    const auto stream = make_stream();
    PageLocked host(64);
    std::fill(host.data.begin(), host.data.end(), std::byte{1});
    const Gate gate(stream);
    REQUIRE(cuMemcpyHtoDAsync(range.address, host.data.data(), 64, stream) == CUDA_SUCCESS);
    std::vector<std::byte> pageable(64, std::byte{7});
    REQUIRE(cuMemcpyHtoDAsync(range.address + 64, pageable.data(), 64, stream) == CUDA_SUCCESS);
    std::fill(host.data.begin(), host.data.end(), std::byte{2});
    std::fill(pageable.begin(), pageable.end(), std::byte{8}); // already read
    gate.release();
    std::vector<std::byte> out(128);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, 128) == CUDA_SUCCESS);
    CHECK(out[10] == std::byte{2});
    CHECK(out[70] == std::byte{7});
}

TEST_CASE_METHOD(OnRange, "Driver: copies between devices and memsets do not wait, whatever their name",
                 "[driver_rules]") {
    const auto blocking = make_stream(CU_STREAM_DEFAULT);
    const Gate gate(blocking);
    REQUIRE(cuMemsetD8(range.address, 3, 64) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoD(range.address + 64, range.address, 64) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
    gate.release();
    std::vector<std::byte> out(128);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, 128) == CUDA_SUCCESS);
    CHECK(out == std::vector<std::byte>(128, std::byte{3}));
}

TEST_CASE_METHOD(OnRange, "Driver: the legacy default stream waits for blocking streams, and they for it",
                 "[driver_rules]") {
    const auto blocking = make_stream(CU_STREAM_DEFAULT);
    const auto other = make_stream(CU_STREAM_DEFAULT);
    const auto free_stream = make_stream();
    const Gate gate(blocking);
    REQUIRE(cuMemsetD8(range.address, 3, 64) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(range.address, 4, 64, other) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(range.address + 64, 5, 64, free_stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(free_stream) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
    gate.release();
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    std::vector<std::byte> out(1);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, 1) == CUDA_SUCCESS);
    CHECK(out[0] == std::byte{4});
}

TEST_CASE_METHOD(Session, "Driver: the default streams of threads are their own", "[driver_rules]") {
    const auto mine = CU_STREAM_PER_THREAD;
    const Gate gate(mine);
    CHECK(cuStreamQuery(mine) == CUDA_ERROR_NOT_READY);
    std::thread([&] {
        cuCtxSetCurrent(context);
        CHECK(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    }).join();
}

TEST_CASE_METHOD(Session, "Driver: events", "[driver_rules]") {
    const auto first = make_stream();
    const auto second = make_stream();
    const auto event = make_event();
    const auto later = make_event();
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
    {
        const Gate gate(first);
        REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
        REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
        REQUIRE(cuEventRecord(later, second) == CUDA_SUCCESS);
        CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
        float milliseconds = 0;
        CHECK(cuEventElapsedTime(&milliseconds, event, later) == CUDA_ERROR_NOT_READY);
    }
    REQUIRE(cuEventSynchronize(later) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
    float milliseconds = -1;
    REQUIRE(cuEventElapsedTime(&milliseconds, event, later) == CUDA_SUCCESS);
    CHECK(milliseconds >= 0);
    const auto untimed = make_event(CU_EVENT_DISABLE_TIMING);
    REQUIRE(cuEventRecord(untimed, first) == CUDA_SUCCESS);
    CHECK(cuEventElapsedTime(&milliseconds, event, untimed) == CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Driver: an event of a whole context waits for every stream of it",
                 "[driver_rules]") {
    const auto event = make_event(CU_EVENT_DISABLE_TIMING);
    const Gate gate(stream);
    REQUIRE(cuCtxRecordEvent(context, event) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    gate.release();
    CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Driver: host functions run in order and may not call the driver",
                 "[driver_rules]") {
    struct Seen {
        std::atomic<int> calls{0};
        std::atomic<int> status{0};
    } seen;
    const auto function = [](void* data) {
        auto& what = *static_cast<Seen*>(data);
        int count = 0;
        what.status = cuDeviceGetCount(&count);
        ++what.calls;
    };
    REQUIRE(cuLaunchHostFunc(stream, function, &seen) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(seen.calls == 1);
    // A real driver is free to permit it.
    if (simulated()) CHECK(seen.status == CUDA_ERROR_NOT_PERMITTED);
}

TEST_CASE_METHOD(OnRange, "Driver: a destroyed stream still does its work", "[driver_rules]") {
    const auto stream = make_stream();
    const Gate gate(stream);
    REQUIRE(cuMemsetD8Async(range.address, 9, 64, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    gate.release();
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    std::vector<std::byte> out(1);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, 1) == CUDA_SUCCESS);
    CHECK(out[0] == std::byte{9});
}

TEST_CASE("Driver: a device reset ends the primary context, and a new one is another", "[driver_rules]") {
    const auto device = device_count() - 1;
    auto* context = retain_primary(device);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    unsigned long long first = 0;
    unsigned long long second = 0;
    REQUIRE(cuCtxGetId(context, &first) == CUDA_SUCCESS);
    std::vector<std::byte> host(8192);
    REQUIRE(cuMemHostRegister(host.data(), host.size(), 0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxReset(device) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    unsigned flags = 0;
    int active = 1;
    REQUIRE(cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS);
    CHECK(active == 0);
    auto* const again = retain_primary(device);
    CHECK(again == context);
    REQUIRE(cuCtxGetId(again, &second) == CUDA_SUCCESS);
    CHECK(second != first);
    CHECK(cuMemHostUnregister(host.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS);
}

TEST_CASE("Driver: who holds the primary context holds it after a device reset, too", "[driver_rules]") {
    const auto device = device_count() - 1;
    const auto is_active = [=] {
        unsigned flags = 0;
        int active = -1;
        REQUIRE(cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS);
        return active == 1;
    };
    auto* context = retain_primary(device);
    REQUIRE(cuDevicePrimaryCtxReset(device) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(device) == CUDA_ERROR_INVALID_CONTEXT);

    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxReset(device) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS);
    CHECK(is_active());
    CHECK(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS);
    CHECK_FALSE(is_active());
}

TEST_CASE_METHOD(Session, "Driver: a context takes device memory, and gives it back", "[driver_rules]") {
    const auto before = free_bytes();
    auto* const made = make_context(0);
    const auto taken = before - free_bytes();
    CHECK(free_bytes() < before);
    REQUIRE(cuCtxDestroy(made) == CUDA_SUCCESS);
    CHECK(free_bytes() >= before - taken / 2); // a real driver keeps some for the next
}

TEST_CASE_METHOD(Session, "Driver: many threads at once", "[driver_rules]") {
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            const auto check = [&](CUresult status) { failures += status != CUDA_SUCCESS; };
            check(cuCtxSetCurrent(context));
            CUstream stream = nullptr;
            check(cuStreamCreate(&stream, t % 2));
            CUmodule module = nullptr;
            CUfunction add = nullptr;
            check(cuModuleLoadData(&module, k_kernels_ptx));
            check(cuModuleGetFunction(&add, module, "sim_add"));
            for (int round = 0; round < 20; ++round) {
                CUdeviceptr memory = 0;
                std::vector<std::uint32_t> out(256);
                check(cuMemAlloc(&memory, 1024));
                check(cuMemsetD32Async(memory, t, 256, stream));
                check(launch(add, stream, memory, std::uint64_t{256}, 1U));
                check(cuMemcpyDtoHAsync(out.data(), memory, 1024, stream));
                failures += out != std::vector<std::uint32_t>(256, t + 1);
                check(cuMemFree(memory));
            }
            check(cuStreamDestroy(stream));
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(failures == 0);
    if (const auto* sim = simulated()) CHECK(sim->fault_counts().illegal_accesses == 0);
}
