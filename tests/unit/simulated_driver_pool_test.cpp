// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory: pools, and what graphs allocate.

#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::sim::testing;

namespace {

constexpr std::size_t k_bytes = 3 * k_granularity + 100;
constexpr std::size_t k_chunk = std::size_t{32} << 20; ///< what a pool takes at a time

CUdeviceptr allocate_async(CUstream stream, std::size_t bytes = k_bytes) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocAsync(&address, bytes, stream) == CUDA_SUCCESS);
    return address;
}

CUmemoryPool make_pool(std::size_t most_bytes = 0) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.maxSize = most_bytes;
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    return pool;
}

cuuint64_t number(CUmemoryPool pool, CUmemPool_attribute attribute) {
    cuuint64_t value = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
    return value;
}

void keep_everything(CUmemoryPool pool) {
    cuuint64_t threshold = ~cuuint64_t{0};
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
}

bool is_known(CUdeviceptr address) {
    unsigned type = 0;
    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

CUgraphExec end_and_instantiate(CUstream stream, unsigned long long flags = 0) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiate(&exec, graph, flags) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    return exec;
}

} // namespace

TEST_CASE("Simulated driver: stream-ordered memory is freed in its turn", "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    const auto before = sim_free_bytes(0);
    const auto address = allocate_async(stream);
    CHECK(sim_live_objects().pool_bytes == k_bytes);
    REQUIRE(cuMemsetD8Async(address, 7, k_bytes, stream) == CUDA_SUCCESS);
    std::vector<std::byte> out(k_bytes);
    REQUIRE(cuMemcpyDtoHAsync(out.data(), address, k_bytes, stream) == CUDA_SUCCESS);
    CHECK(out.back() == std::byte{7});
    {
        const Gate gate(stream);
        REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
        CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
        CHECK(sim_live_objects().pool_allocations == 1);
        CHECK(sim_free_bytes(0) < before);
    }
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(sim_live_objects().pool_allocations == 0);
    CHECK(sim_free_bytes(0) == before);
    CHECK_FALSE(is_known(address));
    CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemFreeAsync(0, stream) == CUDA_SUCCESS);
    CUdeviceptr none = 0;
    CHECK(cuMemAllocAsync(&none, 0, stream) == CUDA_SUCCESS);
    CHECK(none == 0);
}

TEST_CASE("Simulated driver: what may free what", "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    CHECK(cuMemFree(allocate_async(stream)) == CUDA_SUCCESS);
    CUdeviceptr plain = 0;
    REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(plain, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(sim_live_objects().plain_allocations == 0);
    CHECK(sim_live_objects().pool_allocations == 0);
    // Memory of a pool is nothing that the program mapped.
    const auto address = allocate_async(stream, k_granularity);
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemUnmap(address, k_granularity) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAddressFree(address, k_granularity) == CUDA_ERROR_INVALID_VALUE);
    CHECK(sim_live_objects().mappings == 0);
    CHECK(sim_live_objects().reservations == 0);
    // It goes with its context if nobody frees it.
}

TEST_CASE("Simulated driver: a pool keeps what its threshold allows, and uses it again",
          "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    const auto pool = make_pool();
    keep_everything(pool);
    const auto before = sim_free_bytes(0);
    CUdeviceptr first = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&first, k_bytes, pool, stream) == CUDA_SUCCESS);
    CUmemoryPool origin = nullptr;
    REQUIRE(cuPointerGetAttribute(&origin, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, first) == CUDA_SUCCESS);
    CHECK(origin == pool);
    CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= k_bytes);
    REQUIRE(cuMemFreeAsync(first, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK_FALSE(is_known(first));
    CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    CHECK(number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= k_bytes);
    CHECK(sim_free_bytes(0) < before);
    CUdeviceptr second = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&second, k_bytes - 5000, pool, stream) == CUDA_SUCCESS);
    CHECK(second == first);
    CHECK(is_known(second));
    REQUIRE(cuMemFree(second) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(sim_free_bytes(0) == before);
    CHECK(number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= k_bytes);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    CHECK(sim_live_objects().memory_pools == 0);
}

TEST_CASE("Simulated driver: pools of a device", "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    CUmemoryPool original = nullptr;
    CUmemoryPool current = nullptr;
    REQUIRE(cuDeviceGetDefaultMemPool(&original, 0) == CUDA_SUCCESS);
    const auto pool = make_pool(k_chunk);
    REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
    const auto address = allocate_async(stream, k_granularity);
    CUdeviceptr none = 0;
    CHECK(cuMemAllocAsync(&none, k_chunk, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemPoolDestroy(original) == CUDA_ERROR_INVALID_VALUE);
    // A destroyed pool goes when its last allocation does.
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
    CHECK(current == original);
    REQUIRE(cuMemsetD8Async(address, 1, k_granularity, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(sim_live_objects().pool_reserved_bytes == 0);
}

TEST_CASE("Simulated driver: a pool's memory is for the devices that it was opened to",
          "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    const auto pool = make_pool();
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&address, 4096, pool, stream) == CUDA_SUCCESS);
    CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUmemAccess_flags flags{};
    REQUIRE(cuMemPoolGetAccess(&flags, pool, &there) == CUDA_SUCCESS);
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    {
        const Session other(1);
        CHECK(cuMemsetD8(address, 1, 16) == CUDA_ERROR_INVALID_VALUE);
        CUmemAccessDesc open{};
        open.location = there;
        open.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        REQUIRE(cuMemPoolSetAccess(pool, &open, 1) == CUDA_SUCCESS);
        CHECK(cuMemsetD8(address, 1, 16) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    REQUIRE(cuMemPoolGetAccess(&flags, pool, &there) == CUDA_SUCCESS);
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: a full device takes what pools keep, and waits for frees under way",
          "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    const auto pool = make_pool();
    keep_everything(pool);
    const auto most = sim_free_bytes(0) / 2 + k_granularity;
    CUdeviceptr kept = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&kept, most, pool, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(kept) == CUDA_SUCCESS);
    const auto address = allocate_async(stream, most);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    const auto again = allocate_async(stream, most);
    CUdeviceptr none = 0;
    CHECK(cuMemAllocAsync(&none, most, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemFree(again) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: a captured allocation has memory from a launch until its free",
          "[simulated_driver]") {
    const Session session;
    PageLocked host(64);
    const auto stream = make_stream();
    const auto add = kernel("sim_add");
    const auto before = sim_free_bytes(0);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(CUdeviceptr{4096}, stream) == CUDA_ERROR_INVALID_VALUE);
    const auto address = allocate_async(stream);
    REQUIRE(cuMemsetD8Async(address, 9, k_bytes, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD8Async(address, 9, k_bytes + 1, stream) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(launch(add, stream, address, std::uint64_t{16}, 0x03030303U) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync(host.data.data(), address, 64, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    const auto exec = end_and_instantiate(stream);
    CHECK(sim_free_bytes(0) == before);
    CHECK_FALSE(is_known(address));
    for (int round = 0; round < 3; ++round) {
        const Gate gate(stream);
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        CHECK(is_known(address));
        CHECK(sim_live_objects().graph_allocations == 1);
        CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
        gate.release();
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(host.data.back() == std::byte{12});
        CHECK(sim_live_objects().graph_allocations == 0);
        CHECK(sim_free_bytes(0) == before);
    }
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Simulated driver: what a graph allocates and does not free lives on", "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    const auto before = sim_free_bytes(0);
    CUgraph graph = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
    allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    allocation.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    allocation.bytesize = k_bytes;
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &allocation) == CUDA_SUCCESS);
    CUDA_MEM_ALLOC_NODE_PARAMS shown{};
    REQUIRE(cuGraphMemAllocNodeGetParams(node, &shown) == CUDA_SUCCESS);
    CHECK(shown.dptr == allocation.dptr);
    CHECK(shown.bytesize == k_bytes);
    CUgraphExec strict = nullptr;
    CUgraphExec lenient = nullptr;
    REQUIRE(cuGraphInstantiate(&strict, graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiate(&lenient, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) ==
            CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(strict, stream) == CUDA_SUCCESS);
    CHECK(cuGraphLaunch(strict, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphLaunch(lenient, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(allocation.dptr, 1, k_bytes, stream) == CUDA_SUCCESS);

    CUgraph freeing = nullptr;
    CUgraphExec frees = nullptr;
    REQUIRE(cuGraphCreate(&freeing, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddMemFreeNode(&node, freeing, nullptr, 0, allocation.dptr) == CUDA_SUCCESS);
    CUdeviceptr freed = 0;
    REQUIRE(cuGraphMemFreeNodeGetParams(node, &freed) == CUDA_SUCCESS);
    CHECK(freed == allocation.dptr);
    REQUIRE(cuGraphInstantiate(&frees, freeing, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(frees, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(sim_free_bytes(0) == before);
    REQUIRE(cuGraphLaunch(strict, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(allocation.dptr, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(sim_free_bytes(0) == before);
    REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
    for (auto* const exec : {strict, lenient, frees}) REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    for (auto* const each : {graph, freeing}) REQUIRE(cuGraphDestroy(each) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: a launch that finds no memory leaves none behind", "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    const auto before = sim_free_bytes(0);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    const auto small = allocate_async(stream);
    const auto large = allocate_async(stream, before);
    REQUIRE(cuMemFreeAsync(small, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(large, stream) == CUDA_SUCCESS);
    const auto exec = end_and_instantiate(stream);
    CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(sim_free_bytes(0) == before);
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}
