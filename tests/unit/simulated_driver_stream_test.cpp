// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams and events: later, in order, and waited for.

#include "support/simulated_driver/testing.hpp"

#include <algorithm>

#include <atomic>
#include <chrono>
#include <thread>

using namespace gpu_sleep::sim::testing;

namespace {

CUevent make_event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, flags) == CUDA_SUCCESS);
    return event;
}

} // namespace

TEST_CASE("Simulated driver: streams work in order, and later than they are given work",
          "[simulated_driver]") {
    const Session session;
    const Range range;
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

TEST_CASE("Simulated driver: a page-locked copy reads and writes when it is executed", "[simulated_driver]") {
    const Session session;
    const Range range;
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

TEST_CASE("Simulated driver: copies between devices and memsets do not wait, whatever their name",
          "[simulated_driver]") {
    const Session session;
    const Range range;
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

TEST_CASE("Simulated driver: the legacy default stream waits for blocking streams, and they for it",
          "[simulated_driver]") {
    const Session session;
    const Range range;
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

TEST_CASE("Simulated driver: the default streams of threads are their own", "[simulated_driver]") {
    const Session session;
    const auto mine = CU_STREAM_PER_THREAD;
    const Gate gate(mine);
    CHECK(cuStreamQuery(mine) == CUDA_ERROR_NOT_READY);
    std::thread([&] {
        cuCtxSetCurrent(session.context);
        CHECK(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    }).join();
}

TEST_CASE("Simulated driver: events", "[simulated_driver]") {
    const Session session;
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
    CHECK(cuEventDestroy(event) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventRecord(event, first) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Simulated driver: an event of a whole context waits for every stream of it",
          "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    const auto event = make_event(CU_EVENT_DISABLE_TIMING);
    const Gate gate(stream);
    REQUIRE(cuCtxRecordEvent(session.context, event) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    gate.release();
    CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: host functions run in order and may not call the driver", "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
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
    REQUIRE(cuStreamAddCallback(
                stream, [](CUstream, CUresult, void* data) { ++static_cast<Seen*>(data)->calls; }, &seen,
                0) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(seen.calls == 2);
    CHECK(seen.status == CUDA_ERROR_NOT_PERMITTED);
}

TEST_CASE("Simulated driver: a destroyed stream still does its work", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto stream = make_stream();
    const Gate gate(stream);
    REQUIRE(cuMemsetD8Async(range.address, 9, 64, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    gate.release();
    CHECK(cuStreamDestroy(stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    std::vector<std::byte> out(1);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, 1) == CUDA_SUCCESS);
    CHECK(out[0] == std::byte{9});
}

TEST_CASE("Simulated driver: what belongs to a context dies with it, and stale handles are errors",
          "[simulated_driver]") {
    const Session session;
    const auto before = sim_live_objects();
    CUcontext context = nullptr;
    REQUIRE(cuCtxCreate(&context, nullptr, 0, 0) == CUDA_SUCCESS);
    CHECK(sim_live_objects().contexts == before.contexts + 1);
    const auto stream = make_stream();
    const auto event = make_event();
    const auto function = kernel("sim_spin");
    CUdeviceptr plain = 0;
    REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
    unsigned long long id = 0;
    REQUIRE(cuCtxGetId(context, &id) == CUDA_SUCCESS);
    // Cut short, or the end would wait for ten minutes.
    REQUIRE(launch(function, stream, std::uint64_t{600'000}) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    CUcontext current = nullptr;
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy(context) == CUDA_SUCCESS);
    REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == context);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    REQUIRE(cuCtxPopCurrent(&current) == CUDA_SUCCESS);
    CHECK(cuCtxPushCurrent(context) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxGetId(context, &id) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(launch(function, nullptr, std::uint64_t{0}) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuMemFree(plain) == CUDA_ERROR_INVALID_VALUE);
    const auto after = sim_live_objects();
    CHECK(after.contexts == before.contexts);
    CHECK(after.streams == before.streams);
    CHECK(after.events == before.events);
    CHECK(after.modules == before.modules);
    CHECK(after.plain_bytes == before.plain_bytes);
    CHECK(after.host_registrations == before.host_registrations);
}

TEST_CASE("Simulated driver: a device reset ends the primary context, and a new one is another",
          "[simulated_driver]") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    unsigned long long first = 0;
    unsigned long long second = 0;
    REQUIRE(cuCtxGetId(context, &first) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxReset(1) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    unsigned flags = 0;
    int active = 1;
    REQUIRE(cuDevicePrimaryCtxGetState(1, &flags, &active) == CUDA_SUCCESS);
    CHECK(active == 0);
    CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_ERROR_INVALID_CONTEXT);
    CUcontext again = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&again, 1) == CUDA_SUCCESS);
    CHECK(again == context);
    REQUIRE(cuCtxGetId(again, &second) == CUDA_SUCCESS);
    CHECK(second != first);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: a context takes device memory", "[simulated_driver]") {
    const Session session;
    const auto before = sim_free_bytes(1);
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
    CHECK(sim_free_bytes(1) == before - (std::uint64_t{8} << 20));
    REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
    CHECK(sim_free_bytes(1) == before);
}

TEST_CASE("Simulated driver: many threads at once", "[simulated_driver]") {
    const Session session;
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            const auto check = [&](CUresult status) { failures += status != CUDA_SUCCESS; };
            check(cuCtxSetCurrent(session.context));
            CUstream stream = nullptr;
            check(cuStreamCreate(&stream, t % 2));
            CUmodule module = nullptr;
            CUfunction add = nullptr;
            check(cuModuleLoadData(&module, "image"));
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
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Simulated driver: copies of rectangles", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto bytes = random_bytes(16 * 64);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    std::vector<std::byte> out(4 * 8);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = range.address;
    copy.srcPitch = 64;
    copy.srcXInBytes = 10;
    copy.srcY = 3;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = out.data();
    copy.dstPitch = 8;
    copy.WidthInBytes = 8;
    copy.Height = 4;
    REQUIRE(cuMemcpy2D(&copy) == CUDA_SUCCESS);
    for (std::size_t row = 0; row < 4; ++row)
        CHECK(std::equal(out.begin() + static_cast<std::ptrdiff_t>(row * 8),
                         out.begin() + static_cast<std::ptrdiff_t>(row * 8 + 8),
                         bytes.begin() + static_cast<std::ptrdiff_t>((row + 3) * 64 + 10)));
    REQUIRE(cuMemsetD2D16(range.address, 64, 0x0203, 4, 2) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address + 64, 10) == CUDA_SUCCESS);
    CHECK(out[7] == std::byte{2});
    CHECK(out[6] == std::byte{3});
    CHECK(out[8] == bytes[64 + 8]);
}

TEST_CASE("Simulated driver: copies of boxes, and of many pieces", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto stream = make_stream();
    const auto bytes = random_bytes(4096);
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = bytes.data();
    box.srcPitch = 64;
    box.srcHeight = box.dstHeight = box.Height = 8;
    box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.dstDevice = range.address;
    box.dstPitch = 512;
    box.WidthInBytes = 64;
    box.Depth = 8;
    REQUIRE(cuMemcpy3D(&box) == CUDA_SUCCESS);
    box.dstHeight = 9;
    CHECK(cuMemcpy3DAsync(&box, stream) == CUDA_ERROR_NOT_SUPPORTED);
    std::vector<std::byte> out(128);
    CUdeviceptr from[] = {range.address + 512, range.address + 63 * 512};
    CUdeviceptr to[] = {reinterpret_cast<CUdeviceptr>(out.data()),
                        reinterpret_cast<CUdeviceptr>(out.data() + 64)};
    std::size_t sizes[] = {64, 64};
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    REQUIRE(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(std::equal(out.begin(), out.begin() + 64, bytes.begin() + 64));
    CHECK(std::equal(out.begin() + 64, out.end(), bytes.end() - 64));
    CHECK(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, nullptr) ==
          CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Simulated driver: peers", "[simulated_driver]") {
    const Session session;
    CUcontext other = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
    const auto bytes = random_bytes(4096);
    {
        const Range here;
        const Range there(k_granularity, 1);
        REQUIRE(cuMemcpyHtoD(here.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
        CHECK(cuMemcpyDtoD(there.address, here.address, bytes.size()) == CUDA_ERROR_INVALID_VALUE);
        REQUIRE(cuMemcpyPeer(there.address, other, here.address, session.context, bytes.size()) ==
                CUDA_SUCCESS);
        REQUIRE(grant(there.address, there.bytes, 0) == CUDA_SUCCESS);
        std::vector<std::byte> out(bytes.size());
        REQUIRE(cuMemcpyDtoH(out.data(), there.address, out.size()) == CUDA_SUCCESS);
        CHECK(out == bytes);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    CHECK(cuCtxEnablePeerAccess(other, 0) == CUDA_SUCCESS);
    CHECK(cuCtxEnablePeerAccess(other, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    CHECK(cuCtxDisablePeerAccess(other) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
}
