// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory and its pools.

#include "stream_ordered.hpp"

using namespace gpu_sleep::driver_rules;

TEST_CASE_METHOD(Session, "Driver: stream-ordered memory is freed in its turn", "[driver_rules]") {
    const auto* sim = simulated();
    const auto stream = make_stream();
    const auto before = free_bytes();
    const auto address = allocate_async(stream);
    if (sim) CHECK(sim->live_objects().pool_bytes == k_bytes);
    REQUIRE(cuMemsetD8Async(address, 7, k_bytes, stream) == CUDA_SUCCESS);
    std::vector<std::byte> out(k_bytes);
    REQUIRE(cuMemcpyDtoHAsync(out.data(), address, k_bytes, stream) == CUDA_SUCCESS);
    CHECK(out.back() == std::byte{7});
    {
        const Gate gate(stream);
        REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
        CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
        if (sim) CHECK(sim->live_objects().pool_allocations == 1);
        CHECK(free_bytes() < before);
    }
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    if (sim) {
        CHECK(sim->live_objects().pool_allocations == 0);
        CHECK(free_bytes() == before);
        CHECK_FALSE(is_known(address));
    }
    CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr none = 0;
    CHECK(cuMemAllocAsync(&none, 0, stream) == CUDA_SUCCESS);
    CHECK(none == 0);
}

TEST_CASE_METHOD(Session, "Driver: freeing nothing in a stream is no error", "[driver_rules]") {
    CHECK(cuMemFreeAsync(0, make_stream()) == CUDA_SUCCESS);
    CHECK(cuMemFree(0) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Driver: what may free what", "[driver_rules]") {
    CHECK(cuMemFree(allocate_async(stream)) == CUDA_SUCCESS);
    const auto plain = allocate(4096);
    REQUIRE(cuMemFreeAsync(plain, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    if (const auto* sim = simulated()) {
        CHECK(sim->live_objects().plain_allocations == 0);
        CHECK(sim->live_objects().pool_allocations == 0);
    }
    // Memory of a pool is nothing that the program mapped.
    const auto address = allocate_async(stream, k_granularity);
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(address, k_granularity) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAddressFree(address, k_granularity) == CUDA_ERROR_INVALID_VALUE);
    if (const auto* sim = simulated()) {
        CHECK(sim->live_objects().mappings == 0);
        CHECK(sim->live_objects().reservations == 0);
    }
    // It goes with its context if nobody frees it.
}

TEST_CASE_METHOD(OnStream, "Driver: pools of a device", "[driver_rules]") {
    constexpr std::size_t k_most = std::size_t{32} << 20;
    CUmemoryPool original = nullptr;
    CUmemoryPool current = nullptr;
    REQUIRE(cuDeviceGetDefaultMemPool(&original, 0) == CUDA_SUCCESS);
    const auto pool = make_pool(k_most);
    REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
    const auto address = allocate_async(stream, k_granularity);
    CUdeviceptr none = 0;
    CHECK(cuMemAllocAsync(&none, k_most, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemPoolDestroy(original) == CUDA_ERROR_INVALID_VALUE);
    // A destroyed pool goes when its last allocation does.
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    REQUIRE(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
    CHECK(current == original);
    REQUIRE(cuMemsetD8Async(address, 1, k_granularity, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    if (const auto* sim = simulated()) {
        CHECK(sim->live_objects().pool_reserved_bytes == 0);
        CHECK(sim->live_objects().memory_pools == 0);
    }
}

TEST_CASE("Driver: a pool's memory is for the devices that it was opened to", "[driver_rules]") {
    if (!has_two_devices()) return;
    const Session session;
    const auto stream = make_stream();
    const auto pool = make_pool();
    const auto address = allocate_from(pool, 4096, stream);
    {
        const Session other(1);
        CHECK(cuMemsetD8(address, 1, 16) == CUDA_ERROR_INVALID_VALUE);
        CUmemAccessDesc open{};
        open.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
        open.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        REQUIRE(cuMemPoolSetAccess(pool, &open, 1) == CUDA_SUCCESS);
        CHECK(cuMemsetD8(address, 1, 16) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Driver: a full device takes what pools keep, and waits for frees under way",
                 "[driver_rules]") {
    const auto pool = make_pool();
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, k_all);
    const auto most = free_bytes() / 5 * 3;
    const auto kept = allocate_from(pool, most, stream);
    REQUIRE(cuMemFree(kept) == CUDA_SUCCESS);
    const auto address = allocate_async(stream, most);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    const auto again = allocate_async(stream, most);
    CUdeviceptr none = 0;
    CHECK(cuMemAllocAsync(&none, most, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemFree(again) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}
