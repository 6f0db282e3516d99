// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Failures, delays and corruption on request, and the counts of what went wrong.

#include "support/simulated_driver/testing.hpp"

#include <dlfcn.h>

#include <chrono>
#include <thread>

using namespace gpu_sleep::sim::testing;

namespace {

CUresult create_and_release() {
    const auto properties = properties_on(0);
    CUmemGenericAllocationHandle handle = 0;
    const auto status = cuMemCreate(&handle, k_granularity, &properties, 0);
    return status == CUDA_SUCCESS ? cuMemRelease(handle) : status;
}

} // namespace

TEST_CASE("Simulated driver: the n-th call of a name fails, and does nothing", "[simulated_driver]") {
    const Session session;
    sim_fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, SIM_ONCE);
    CHECK(create_and_release() == CUDA_SUCCESS);
    CHECK(create_and_release() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(sim_live_objects().handles == 0);
    CHECK(create_and_release() == CUDA_SUCCESS);
    CHECK(sim_fault_counts().injected_failures == 1);
    CHECK(sim_calls("cuMemCreate") == 3);
}

TEST_CASE("Simulated driver: calls can fail for ever, by either name, and of all names",
          "[simulated_driver]") {
    const Session session;
    CUdeviceptr address = 0;
    sim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_UNKNOWN, SIM_FOREVER);
    CHECK(cuMemAlloc(&address, 16) == CUDA_ERROR_UNKNOWN);
    CHECK(cuMemAlloc(&address, 16) == CUDA_ERROR_UNKNOWN);
    sim_clear();
    sim_fail("*", 2, CUDA_ERROR_NOT_READY, SIM_ONCE);
    int version = 0;
    CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, 16) == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_NOT_READY);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: a failure can spare the thread that asked for it", "[simulated_driver]") {
    const Session session;
    sim_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, SIM_OTHER_THREADS);
    CHECK(create_and_release() == CUDA_SUCCESS);
    std::thread([] { CHECK(create_and_release() == CUDA_ERROR_OUT_OF_MEMORY); }).join();
}

TEST_CASE("Simulated driver: calls and queued work can be slow", "[simulated_driver]") {
    using Clock = std::chrono::steady_clock;
    const Session session;
    const Range range;
    const auto time = [](const auto& what) {
        const auto begin = Clock::now();
        what();
        return Clock::now() - begin;
    };
    constexpr std::chrono::milliseconds k_short{20};
    constexpr std::chrono::milliseconds k_long{200};
    sim_delay("cuMemCreate", std::chrono::microseconds(k_short).count());
    CHECK(time([] { create_and_release(); }) >= k_short);
    sim_clear();
    sim_delay("cuMemsetD8Async", std::chrono::microseconds(k_long).count());
    CHECK(time([&] { cuMemsetD8Async(range.address, 1, 16, nullptr); }) < k_long);
    CHECK(time([] { cuCtxSynchronize(); }) >= k_short);
    CHECK(sim_nanoseconds_inside() >= std::uint64_t{40'000'000});
}

TEST_CASE("Simulated driver: a copy can be corrupted, and memory too", "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto bytes = random_bytes(4096);
    sim_corrupt_copy("cuMemcpyDtoH", 2);
    REQUIRE(cuMemcpyHtoD(range.address, bytes.data(), bytes.size()) == CUDA_SUCCESS);
    std::vector<std::byte> out(bytes.size());
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK(out == bytes);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK(out != bytes);
    CHECK(sim_fault_counts().corrupted_copies == 1);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK(out == bytes);
    sim_flip_bit(range.address, 100, 3);
    REQUIRE(cuMemcpyDtoH(out.data(), range.address, out.size()) == CUDA_SUCCESS);
    CHECK((out[100] ^ bytes[100]) == std::byte{8});
}

TEST_CASE("Simulated driver: calls for a default stream a thread count, and fail, as the others do",
          "[simulated_driver]") {
    const Session session;
    const Range range;
    const auto symbol = [](const char* name) { return ::dlsym(RTLD_DEFAULT, name); };
    auto* const memset = reinterpret_cast<decltype(&cuMemsetD8Async)>(symbol("cuMemsetD8Async_ptsz"));
    auto* const fill = reinterpret_cast<decltype(&cuMemsetD32)>(symbol("cuMemsetD32_v2_ptds"));
    REQUIRE(memset != nullptr);
    REQUIRE(fill != nullptr);
    REQUIRE(memset(range.address, 1, 16, nullptr) == CUDA_SUCCESS);
    CHECK(sim_calls("cuMemsetD8Async") == 1);
    CHECK(sim_calls("cuMemsetD8Async_ptsz") == 1);
    sim_fail("cuMemsetD32_v2_ptds", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    CHECK(fill(range.address, 7, 4) == CUDA_ERROR_UNKNOWN);
}
