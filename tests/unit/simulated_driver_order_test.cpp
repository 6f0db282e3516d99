// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the simulated driver is for: a wrong order is caught, and the right one is not.

#include "support/simulated_driver/testing.hpp"

#include <sys/mman.h>

using namespace gpu_sleep::sim::testing;

TEST_CASE("Simulated driver: memory released before its copy is over is caught", "[simulated_driver]") {
    const Session session;
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
    CHECK(sim_fault_counts().host_memory_lost == 0);
}

TEST_CASE("Simulated driver: memory replaced before its copy is over is caught", "[simulated_driver]") {
    const Session session;
    Range range;
    PageLocked host(range.bytes);
    const auto stream = make_stream();
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
        REQUIRE(launch(kernel("sim_add"), stream, range.address, std::uint64_t{16}, 1U) == CUDA_SUCCESS);
    }
    range.take_away();
    range.bring_back();
    gate.release();
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(sim_fault_counts().illegal_accesses == 1);
}

TEST_CASE("Simulated driver: a copy that was waited for leaves no trace", "[simulated_driver]") {
    const Session session;
    Range range;
    PageLocked host(range.bytes);
    const auto bytes = random_bytes(range.bytes);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), range.bytes) == CUDA_SUCCESS);
    const auto stream = make_stream();
    const Gate gate(stream);
    REQUIRE(cuMemcpyDtoHAsync(host.data.data(), range.address, range.bytes, stream) == CUDA_SUCCESS);
    gate.release();
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    range.take_away();
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(host.data == bytes);
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Simulated driver: page-locked memory given up before its copy is over is caught",
          "[simulated_driver]") {
    const Session session;
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
    CHECK(sim_fault_counts().host_memory_lost == 1);
    ::munmap(memory, range.bytes);
}

TEST_CASE("Simulated driver: work on an unmapped address is refused or fails", "[simulated_driver]") {
    const Session session;
    Range range;
    range.take_away();
    std::vector<std::byte> host(64);
    const auto stream = make_stream();
    SECTION("copies and memsets are refused at once, and do no harm") {
        CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_INVALID_VALUE);
        CHECK(cuMemcpyDtoHAsync(host.data(), range.address, host.size(), stream) == CUDA_ERROR_INVALID_VALUE);
        CHECK(cuMemsetD8Async(range.address, 1, 64, stream) == CUDA_ERROR_INVALID_VALUE);
        CHECK(cuMemsetD32(reinterpret_cast<CUdeviceptr>(host.data()), 1, 1) == CUDA_ERROR_INVALID_VALUE);
        CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    }
    SECTION("a kernel faults, and the context is lost") {
        REQUIRE(launch(kernel("sim_fill"), stream, range.address, std::uint64_t{4}, 7U) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK(sim_fault_counts().illegal_accesses == 1);
    }
    SECTION("a kernel that runs past the end faults") {
        range.bring_back();
        const auto count = range.bytes / 4 + 4096;
        REQUIRE(launch(kernel("sim_fill"), stream, range.address, std::uint64_t{count}, 7U) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

TEST_CASE("Simulated driver: a missing access grant is caught", "[simulated_driver]") {
    const Session session(1); // the memory is device 0's; device 1 works
    Range range(2 * k_granularity, 0);
    std::vector<std::byte> host(64);
    const auto stream = make_stream();
    const auto fill = kernel("sim_fill");
    SECTION("copies are refused until it is there") {
        CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_INVALID_VALUE);
        REQUIRE(grant(range.address, range.bytes, 1) == CUDA_SUCCESS);
        CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_SUCCESS);
    }
    SECTION("read access is not write access") {
        REQUIRE(grant(range.address, range.bytes, 1, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS);
        CHECK(cuMemcpyDtoH(host.data(), range.address, host.size()) == CUDA_SUCCESS);
        CHECK(cuMemcpyHtoD(range.address, host.data(), host.size()) == CUDA_ERROR_INVALID_VALUE);
    }
    SECTION("a kernel faults") {
        REQUIRE(launch(fill, stream, range.address, std::uint64_t{4}, 7U) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    SECTION("the product's kernel faults on a block that its device may not read") {
        void* pinned = nullptr;
        REQUIRE(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
        auto* const words = static_cast<std::uint64_t*>(pinned);
        words[0] = range.address;
        words[1] = 4096;
        const auto fingerprint = kernel("gpu_sleep_fingerprint");
        REQUIRE(launch(fingerprint, stream, words, words + 8, std::uint64_t{1}) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    SECTION("memory that was never granted faults") {
        range.take_away();
        const auto handle = create(range.bytes);
        REQUIRE(cuMemMap(range.address, range.bytes, 0, handle, 0) == CUDA_SUCCESS);
        CHECK(cuMemsetD8Async(range.address, 1, 16, stream) == CUDA_ERROR_INVALID_VALUE);
        REQUIRE(launch(fill, stream, range.address, std::uint64_t{4}, 7U) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK(cuMemUnmap(range.address, range.bytes) == CUDA_SUCCESS);
        CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
        range.bring_back();
    }
}

TEST_CASE("Simulated driver: a synchronise breaks a capture", "[simulated_driver]") {
    const Session session;
    const auto stream = make_stream();
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(sim_fault_counts().broken_captures == 1);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == nullptr);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}
