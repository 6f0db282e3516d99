// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a real driver leaves undefined: what is left of what was destroyed, here errors, and what memory holds
// when it is new, here no zeros.

#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::sim::testing;

TEST_CASE_METHOD(Session,
                 "Simulated driver: what belongs to a context dies with it, and stale handles are errors",
                 "[simulated_driver]") {
    const auto before = sim_live_objects();
    CUcontext made = nullptr;
    REQUIRE(cuCtxCreate(&made, nullptr, 0, 0) == CUDA_SUCCESS);
    CHECK(sim_live_objects().contexts == before.contexts + 1);
    const auto stream = make_stream();
    const auto event = make_event();
    const auto function = kernel("sim_spin");
    CUdeviceptr plain = 0;
    REQUIRE(cuMemAlloc(&plain, 4096) == CUDA_SUCCESS);
    unsigned long long id = 0;
    REQUIRE(cuCtxGetId(made, &id) == CUDA_SUCCESS);
    // Cut short, or the end would wait for ten minutes.
    REQUIRE(launch(function, stream, std::uint64_t{600'000}) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    CUcontext current = nullptr;
    REQUIRE(cuCtxPushCurrent(made) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy(made) == CUDA_SUCCESS);
    REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    CHECK(current == made);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    REQUIRE(cuCtxPopCurrent(&current) == CUDA_SUCCESS);
    CHECK(cuCtxPushCurrent(made) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxGetId(made, &id) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
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

TEST_CASE_METHOD(Session, "Simulated driver: what was destroyed is no longer known", "[simulated_driver]") {
    const auto stream = make_stream();
    const auto event = make_event();
    REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
    CHECK(cuEventDestroy(event) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuEventRecord(event, stream) == CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy(stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
    CUgraph graph = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    CHECK(cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
    const auto handle = create(k_granularity);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
    CUlibrary library = nullptr;
    REQUIRE(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&function, module, "sim_spin") == CUDA_SUCCESS);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(launch(function, nullptr, std::uint64_t{0}) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_METHOD(Session, "Simulated driver: fresh memory is not zero", "[simulated_driver]") {
    for (int round = 0; round < 2; ++round) {
        const Range range;
        const auto words = read<std::uint64_t>(range.address, range.bytes / 8);
        CHECK(std::none_of(words.begin(), words.end(), [](std::uint64_t word) { return word == 0; }));
        REQUIRE(cuMemsetD8(range.address, 0, range.bytes) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
}
