// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the simulated driver is for: a wrong order, which a real driver leaves undefined, is detected.

#include "support/fingerprint_key.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::sim::testing;

TEST_CASE_METHOD(Session, "Simulated driver: memory released before its copy is over is detected",
                 "[simulated_driver]") {
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

TEST_CASE_METHOD(Session, "Simulated driver: memory replaced before its copy is over is detected",
                 "[simulated_driver]") {
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

TEST_CASE_METHOD(Session, "Simulated driver: page-locked memory given up before its copy is over is detected",
                 "[simulated_driver]") {
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

TEST_CASE("Simulated driver: the product's kernel faults on a block that its device may not read",
          "[simulated_driver]") {
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
