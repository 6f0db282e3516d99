// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An intercepted program's pools, contexts and streams, as they begin and end. Its captures are in
// captures_test.cpp.

#include "devices.hpp"

#include "gpu_sleep/gpu_sleep.h"

using namespace gpu_sleep::test;

TEST_CASE_METHOD(Devices, "Lifetimes: a pool is its device's, whichever is current when it is first named") {
    cuuint64_t threshold = k_bytes;
    REQUIRE(cuMemPoolSetAttribute(default_pool(1), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) ==
            CUDA_SUCCESS);
    const auto address = allocate_from(default_pool(1), k_bytes, nullptr);
    CHECK(sim_live_objects().pool_allocations == 0); // intercepted
    int device = -1;
    REQUIRE(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == CUDA_SUCCESS);
    CHECK(device == 1);
    REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
    REQUIRE(launch(kernel("sim_fill"), nullptr, address, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(address, nullptr) == CUDA_SUCCESS);
    threshold = 0;
    CHECK(cuMemPoolSetAttribute(default_pool(1), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) ==
          CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Lifetimes: access to a device's pool counts from before its first allocation on") {
    CUmemAccessDesc grant{};
    grant.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    REQUIRE(cuMemPoolSetAccess(default_pool(1), &grant, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
    const auto address = allocate_async(nullptr);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    REQUIRE(launch(kernel("sim_fill"), nullptr, address, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(used(default_pool(1)) == 0);
    grant.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; // other cases' frees need not wait for that device
    CHECK(cuMemPoolSetAccess(default_pool(1), &grant, 1) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Lifetimes: plain memory of another device can be copied, and not be filled") {
    const auto here = allocate();
    const There there(*this);
    CHECK(cuMemsetD8(there.address, 1, k_bytes) ==
          CUDA_ERROR_INVALID_VALUE); // as the driver does with its own
    CHECK(there.is_in(there.address));
    const auto stream = make_stream();
    REQUIRE(cuMemcpyDtoDAsync(here, there.address, k_bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(there.is_in(here));
    std::vector<std::byte> copy(2 * k_bytes);
    CHECK(cuMemcpyDtoH(copy.data(), there.address, copy.size()) ==
          CUDA_ERROR_INVALID_VALUE); // not for want of access
    CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(cuMemFree(here) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Lifetimes: a pool that is limited, or has a special use, is the driver's") {
    CUmemPoolProps limited{};
    limited.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    limited.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    auto special = limited;
    limited.maxSize = 64 << 20;
    auto shared = limited;
    shared.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    special.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
    for (const auto& properties : {limited, shared, special}) {
        CUmemoryPool pool = nullptr;
        REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
        REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
        const auto address = allocate_async(nullptr);
        CHECK(sim_live_objects().pool_allocations == 1);
        CHECK(cuMemFreeAsync(address, nullptr) == CUDA_SUCCESS);
        CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        CHECK(cuDeviceSetMemPool(0, default_pool(0)) == CUDA_SUCCESS);
        CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    }
}

TEST_CASE_METHOD(Devices, "Lifetimes: what a pool gave outlives it") {
    auto* const pool = make_pool();
    const auto stream = make_stream();
    CUdeviceptr first = 0, second = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&first, k_bytes, pool, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocFromPoolAsync(&second, k_bytes, pool, stream) == CUDA_SUCCESS);
    const Gate gate(stream);
    CHECK(cuMemFreeAsync(first, stream) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS); // does not wait
    REQUIRE(launch(kernel("sim_fill"), stream, second, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(second, stream) == CUDA_SUCCESS);
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE("Lifetimes: a pool ends while a context does that its blocks were freed in") {
    constexpr std::chrono::milliseconds k_delay{150};
    Devices devices;
    auto* const pool = make_pool();
    auto* const own = make_context(0);
    auto* const stream = make_stream();
    CHECK(cuMemFreeAsync(allocate_from(pool, k_bytes, stream), stream) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS);
    sim_delay("cuMemPoolDestroy", std::chrono::microseconds(k_delay).count());
    const auto calls = sim_calls("cuMemPoolDestroy");
    auto ends = std::async(std::launch::async, [=] { return cuMemPoolDestroy(pool); });
    CHECK(await_call("cuMemPoolDestroy", calls));
    CHECK(cuCtxDestroy(own) == CUDA_SUCCESS);
    CHECK(ends.get() == CUDA_SUCCESS);
    sim_clear();
    CHECK(held() == 0); // nobody else could say when the block's last user is done
}

TEST_CASE_METHOD(Devices, "Lifetimes: blocks and events of a context do not outlive it") {
    const auto before = held();
    const auto own = make_context(0);
    const auto stream = make_stream();
    const auto freed = allocate_async(stream);
    const auto kept = allocate_async(stream);
    allocate(); // dies with the context
    CHECK(cuMemFreeAsync(freed, stream) == CUDA_SUCCESS);
    CHECK(cuCtxDestroy(own) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    CHECK(held() == before + k_bytes);
    CHECK(cuMemFreeAsync(allocate_async(nullptr), nullptr) == CUDA_SUCCESS);
    CHECK(cuMemFree(kept) == CUDA_SUCCESS); // its context is gone, and it is not
    CHECK(used(default_pool(0)) == 0);
}

TEST_CASE_METHOD(Devices, "Lifetimes: a context that stays keeps what it has") {
    const auto address = allocate();
    const auto freed = allocate_async(nullptr);
    CHECK(cuMemFreeAsync(freed, nullptr) == CUDA_SUCCESS);
    sim_fail("cuDevicePrimaryCtxRelease", 2, CUDA_ERROR_UNKNOWN, SIM_ONCE); // behind one of the agent's own
    CHECK(cuDevicePrimaryCtxRelease(0) != CUDA_SUCCESS);
    sim_clear();
    CHECK(cuCtxDestroy(contexts[0]) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(launch(kernel("sim_fill"), nullptr, address, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(allocate_async(nullptr) == freed);
    CHECK(cuMemFreeAsync(freed, nullptr) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Lifetimes: a device that is reset has nothing left, and works again") {
    const auto freed = allocate_async(nullptr);
    allocate_async(nullptr);
    allocate();
    CHECK(cuMemFreeAsync(freed, nullptr) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    CHECK(held() == 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    CHECK(used(default_pool(0)) == 0);
    for (int i = 0; i < 2; ++i) CHECK(cuMemFreeAsync(allocate_async(nullptr), nullptr) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS); // of before, which the reset did not do
}

TEST_CASE_METHOD(Devices, "Lifetimes: who held a device before its reset holds what is made after it") {
    allocate();
    CHECK(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    const auto address = allocate();
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(held() == k_bytes);
    CHECK(launch(kernel("sim_fill"), nullptr, address, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    CHECK(held() == 0);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(cuDevicePrimaryCtxRetain(&contexts[0], 0) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Lifetimes: memory freed in another device's stream is freed without waiting") {
    const auto pooled = allocate_async(stream);
    const auto plain = allocate();
    const Gate gate(stream);
    REQUIRE(launch(kernel("sim_fill"), stream, pooled, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    REQUIRE(launch(kernel("sim_fill"), stream, plain, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(pooled, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(plain, stream) == CUDA_SUCCESS);
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Lifetimes: a stream that is gone gives no memory and takes none back") {
    CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CUdeviceptr address = 0;
    CHECK(cuMemAllocAsync(&address, k_bytes, stream) == CUDA_ERROR_INVALID_HANDLE);
    const auto pooled = allocate_async(nullptr);
    CHECK(cuMemFreeAsync(pooled, stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(launch(kernel("sim_fill"), nullptr, pooled, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(pooled, nullptr) == CUDA_SUCCESS);
    CHECK(used(default_pool(0)) == 0);
}

TEST_CASE("Lifetimes: a context does not end while a free waits for its work") {
    constexpr std::chrono::milliseconds k_moment{100};
    Devices devices;
    void* flag = nullptr; // of a context that stays
    REQUIRE(cuMemHostAlloc(&flag, sizeof(std::uint32_t), 0) == CUDA_SUCCESS);
    auto* const own = make_context(0);
    const auto address = allocate();
    REQUIRE(launch(kernel("sim_spin_until"), make_stream(), flag) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS);
    const auto waits = sim_calls("cuEventSynchronize");
    auto frees = std::async(std::launch::async, [&] {
        return cuCtxSetCurrent(own) == CUDA_SUCCESS && cuMemFree(address) == CUDA_SUCCESS;
    });
    CHECK(await_call("cuEventSynchronize", waits));
    auto ends = std::async(std::launch::async, [&] { return cuCtxDestroy(own) == CUDA_SUCCESS; });
    CHECK(ends.wait_for(k_moment) == std::future_status::timeout);
    __atomic_store_n(static_cast<std::uint32_t*>(flag), 1U, __ATOMIC_RELEASE);
    CHECK(frees.get());
    CHECK(ends.get());
    CHECK(cuMemFreeHost(flag) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE("Lifetimes: a context ends while others free without a pause") {
    constexpr std::chrono::milliseconds k_delay{20};
    constexpr std::chrono::seconds k_patience{20};
    Devices devices;
    auto* const own = make_context(0);
    REQUIRE(cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS);
    sim_delay("cuEventQuery", std::chrono::microseconds(k_delay).count()); // of the free, in which it waits
    std::atomic<bool> is_over{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i)
        threads.emplace_back([&] {
            cuCtxSetCurrent(devices.contexts[0]);
            for (CUdeviceptr address = 0; !is_over; cuMemFree(address)) cuMemAlloc(&address, k_bytes);
        });
    CHECK(await_call("cuEventQuery", sim_calls("cuEventQuery") + 20));
    auto ends = std::async(std::launch::async, [&] { return cuCtxDestroy(own) == CUDA_SUCCESS; });
    CHECK(ends.wait_for(k_patience) == std::future_status::ready);
    is_over = true;
    for (auto& thread : threads) thread.join();
    sim_clear();
    CHECK(ends.get());
    CHECK(held() == 0);
}

TEST_CASE_METHOD(Devices, "Lifetimes: a free says what went wrong with work before it, and frees") {
    auto* const own = make_context(0);
    const auto first = allocate();
    const auto second = allocate();
    const auto nowhere = reserve(k_bytes);
    REQUIRE(launch(kernel("sim_fill"), nullptr, nowhere, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    CHECK(cuMemFree(first) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFree(second) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(held() == 0);
    CHECK(cuCtxDestroy(own) == CUDA_SUCCESS);
    CHECK(cuMemAddressFree(nowhere, k_bytes) == CUDA_SUCCESS);
    CHECK(sim_fault_counts().illegal_accesses == 1);
    sim_reset_counts();
}

TEST_CASE("Lifetimes: a sleep waits until what a call has made is noted") {
    constexpr std::uint64_t k_asks_us = 1'000'000;
    constexpr std::chrono::milliseconds k_moment{300};
    Devices devices;
    const auto address = allocate();
    std::promise<void> has_ended;
    std::atomic<std::uint64_t> calls{0};
    std::thread makes([&] {
        auto* const context = make_context(0); // the driver alone knows that it is the thread's from now on
        calls = sim_calls("cuCtxGetCurrent");
        sim_delay("cuCtxGetCurrent", k_asks_us);
        CUstream stream = nullptr;
        CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        has_ended.set_value();
        CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
    });
    CHECK(await_call("cuStreamCreate", 0));
    CHECK(await_call("cuCtxGetCurrent", calls));
    sim_clear();
    CHECK(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_OK);
    CHECK(has_ended.get_future().wait_for(k_moment) == std::future_status::ready);
    CHECK(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
    makes.join();
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
}
