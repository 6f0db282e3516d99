// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What only the simulated driver has: errors and no zeros where a real driver leaves it undefined, wrong
// orders that are detected, and signals that stay the program's, amid a kernel, too.

#include "support/fingerprint_key.hpp"
#include "support/own_action.hpp"
#include "support/sanitized.hpp"
#include "support/simulated_driver/testing.hpp"

#include <sys/syscall.h>

using namespace gpu_sleep::sim::testing;

namespace {

std::atomic<int> signals{0};

} // namespace

TEST_CASE_METHOD(Session, "Simulated driver: what a context has dies with it; stale handles are errors") {
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

TEST_CASE_METHOD(Session, "Simulated driver: what was destroyed is no longer known") {
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

TEST_CASE_METHOD(Session, "Simulated driver: fresh memory is not zero") {
    for (int round = 0; round < 2; ++round) {
        const Range range;
        const auto words = read<std::uint64_t>(range.address, range.bytes / 8);
        CHECK(std::none_of(words.begin(), words.end(), [](std::uint64_t word) { return word == 0; }));
        REQUIRE(cuMemsetD8(range.address, 0, range.bytes) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }
}

TEST_CASE_METHOD(Session, "Simulated driver: memory released before its copy is over is detected") {
    Range range;
    PageLocked host(range.bytes);
    const auto stream = make_stream();
    const Gate gate(stream);
    REQUIRE(cuMemcpyDtoHAsync(host.data.data(), range.address, range.bytes, stream) == CUDA_SUCCESS);
    range.take_away();
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(sim_fault_counts().illegal_accesses == 1);
}

TEST_CASE_METHOD(Session, "Simulated driver: memory replaced before its copy is over is detected") {
    Range range;
    PageLocked host(range.bytes);
    const auto stream = make_stream();
    const auto add = kernel("sim_add");
    const Gate gate(stream);
    SECTION("a copy from it") {
        REQUIRE(cuMemcpyDtoHAsync(host.data.data(), range.address, range.bytes, stream) == CUDA_SUCCESS);
    }
    SECTION("a copy to it") {
        REQUIRE(cuMemcpyHtoDAsync(range.address, host.data.data(), range.bytes, stream) == CUDA_SUCCESS);
    }
    SECTION("a memset") {
        REQUIRE(cuMemsetD8Async(range.address, 1, range.bytes, stream) == CUDA_SUCCESS);
    }
    SECTION("a kernel") {
        REQUIRE(launch(add, stream, range.address, std::uint64_t{16}, 1U) == CUDA_SUCCESS);
    }
    range.take_away();
    range.bring_back();
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(sim_fault_counts().illegal_accesses == 1);
}

TEST_CASE_METHOD(Session, "Simulated driver: page-locked memory given up before its copy is detected") {
    const Range range;
    const auto stream = make_stream();
    void* memory = ::mmap(nullptr, range.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    REQUIRE(cuMemHostRegister(memory, range.bytes, 0) == CUDA_SUCCESS);
    const Gate gate(stream);
    REQUIRE(cuMemcpyDtoHAsync(memory, range.address, range.bytes, stream) == CUDA_SUCCESS);
    SECTION("unregistered") {
        REQUIRE(cuMemHostUnregister(memory) == CUDA_SUCCESS);
    }
    SECTION("unmapped") {
        // Out of reach, but not given back: somebody else's memory could come to lie there.
        REQUIRE(::mprotect(memory, range.bytes, PROT_NONE) == 0);
    }
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(sim_fault_counts().illegal_accesses == 1);
    ::munmap(memory, range.bytes);
}

TEST_CASE("Simulated driver: the product's kernel faults on a block that its device may not read") {
    const Session session(1); // the memory is device 0's; device 1 works
    const Range range(2 * k_granularity, 0);
    void* pinned = nullptr;
    REQUIRE(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
    auto* const words = static_cast<std::uint64_t*>(pinned);
    words[0] = range.address;
    words[1] = 4096;
    const auto fingerprint = kernel("gpu_sleep_fingerprint");
    REQUIRE(launch(fingerprint, nullptr, words, words + 8, std::uint64_t{1}, gpu_sleep::test::fixed_key(1)) ==
            CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("Simulated driver: a SIGSEGV that the program ignores, or takes, is none of the driver's") {
    if (gpu_sleep::test::is_thread_sanitized()) return gpu_sleep::test::skip("signals are held back");
    const Session session;
    {
        const OwnAction action(SIG_IGN);
        CHECK(signal_that_ends([] { ::kill(::getpid(), SIGSEGV); }) == 0);
    }
    signals = 0;
    const OwnAction action([](int) { ++signals; });
    for (int i = 1; i < 4; ++i) {
        ::raise(SIGSEGV);
        CHECK(signals == i);
    }
    // Also where it arrives amid a kernel.
    auto* const stream = make_stream();
    const Gate gate(stream);
    signals = 0;
    int sent = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
        sent += ::syscall(SYS_tgkill, ::getpid(), std::stoi(thread.path().filename()), SIGSEGV) == 0;
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(sent > 1);
    for (int i = 0; i < 1000 && signals != sent; ++i)
        ::usleep(10'000); // each thread takes its own in its time
    CHECK(signals == sent);
}
