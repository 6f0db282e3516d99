// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What graphs allocate and free.

#include "stream_ordered.hpp"

using namespace gpu_sleep::driver_rules;

namespace {

CUgraphExec end_and_instantiate(CUstream stream, unsigned long long flags = 0) {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiate(&exec, graph, flags) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    return exec;
}

} // namespace

TEST_CASE_METHOD(Session, "Driver: a captured allocation has memory from a launch until its free",
                 "[driver_rules]") {
    const auto* sim = simulated();
    PageLocked host(64);
    const auto stream = make_stream();
    const auto add = kernel("sim_add");
    const auto before = free_bytes();
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    const auto address = allocate_async(stream);
    REQUIRE(cuMemsetD8Async(address, 9, k_bytes, stream) == CUDA_SUCCESS);
    if (sim) CHECK(cuMemsetD8Async(address, 9, k_bytes + 1, stream) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(launch(add, stream, address, std::uint64_t{16}, 0x03030303U) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync(host.data.data(), address, 64, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    const auto exec = end_and_instantiate(stream);
    if (sim) CHECK(free_bytes() == before);
    CHECK_FALSE(is_known(address));
    for (int round = 0; round < 3; ++round) {
        std::fill(host.data.begin(), host.data.end(), std::byte{0});
        const Gate gate(stream);
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        CHECK_FALSE(is_known(address)); // it is the graph's own
        CUdeviceptr begin = 0;
        std::size_t bytes = 0;
        CHECK(cuMemGetAddressRange(&begin, &bytes, address) == CUDA_ERROR_NOT_FOUND);
        if (sim) CHECK(sim->live_objects().graph_allocations == 1);
        CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
        gate.release();
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(host.data.back() == std::byte{12});
        if (!sim) continue;
        CHECK(sim->live_objects().graph_allocations == 0);
        CHECK(free_bytes() == before);
    }
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    if (sim) CHECK(sim->fault_counts().illegal_accesses == 0);
}

TEST_CASE_METHOD(OnStream, "Driver: a capture refuses the free of what no graph allocated",
                 "[driver_rules]") {
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(CUdeviceptr{4096}, stream) == CUDA_ERROR_INVALID_VALUE);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    if (graph) CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Driver: what a graph allocates and does not free lives on", "[driver_rules]") {
    const auto* sim = simulated();
    const auto stream = make_stream();
    const auto before = free_bytes();
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    const auto address = allocate_async(stream);
    const auto strict = end_and_instantiate(stream);
    CHECK_FALSE(is_known(address));
    REQUIRE(cuGraphLaunch(strict, stream) == CUDA_SUCCESS);
    CHECK(is_known(address)); // as no memory is that its graph frees
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    CHECK(cuMemGetAddressRange(&begin, &bytes, address) == CUDA_SUCCESS);
    CHECK(begin == address);
    CHECK(cuGraphLaunch(strict, stream) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemsetD8Async(address, 1, k_bytes, stream) == CUDA_SUCCESS);

    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    const auto frees = end_and_instantiate(stream);
    REQUIRE(cuGraphLaunch(frees, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    if (sim) CHECK(free_bytes() == before);
    REQUIRE(cuGraphLaunch(strict, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    if (sim) CHECK(free_bytes() == before);
    for (auto* const exec : {strict, frees}) REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Driver: a graph may free at a launch what its last launch left",
                 "[driver_rules]") {
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    const auto address = allocate_async(stream);
    const auto exec = end_and_instantiate(stream, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int round = 0; round < 2; ++round) {
        CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        CHECK(cuMemsetD8Async(address, 1, k_bytes, stream) == CUDA_SUCCESS);
    }
    REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Driver: a graph that allocates is instantiated once at a time",
                 "[driver_rules]") {
    CUgraph graph = nullptr;
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(allocate_async(stream), stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    CUgraphExec first = nullptr;
    CUgraphExec second = nullptr;
    REQUIRE(cuGraphInstantiate(&first, graph, 0) == CUDA_SUCCESS);
    CHECK(cuGraphInstantiate(&second, graph, 0) != CUDA_SUCCESS);
    REQUIRE(cuGraphExecDestroy(first) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiate(&second, graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphExecDestroy(second) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(
    Session, "Driver: a launch that finds too little memory keeps what it found as long as the process lives",
    "[driver_rules]") {
    const auto stream = make_stream();
    const auto before = free_bytes();
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    const auto small = allocate_async(stream);
    const auto large = allocate_async(stream, before);
    REQUIRE(cuMemFreeAsync(small, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(large, stream) == CUDA_SUCCESS);
    const auto exec = end_and_instantiate(stream);
    CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    const auto is_kept = [&] { return free_bytes() < before / 10; };
    CHECK(is_kept());
    CUmemoryPool pool = nullptr;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(is_kept());
    CUdeviceptr plain = 0;
    CHECK(cuMemAlloc(&plain, before / 2) == CUDA_ERROR_OUT_OF_MEMORY);
    CUmemGenericAllocationHandle handle = 0;
    const auto properties = properties_on(0);
    CHECK(cuMemCreate(&handle, before / 2 / k_granularity * k_granularity, &properties, 0) ==
          CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(is_kept());
    REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
    auto* const again = retain_primary(0);
    REQUIRE(cuCtxSetCurrent(again) == CUDA_SUCCESS);
    CHECK(is_kept());
    REQUIRE(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}
