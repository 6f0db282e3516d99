// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The simulated driver in several processes: what its environment says, and memory that they share.

#include "support/files_of.hpp"
#include "support/other_run.hpp"
#include "support/simulated_driver/testing.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

using namespace gpu_sleep::sim::testing;

namespace {

struct TemporaryFile {
    TemporaryFile() {
        char name[] = "/tmp/gpu-sleep-sim-XXXXXX";
        const int fd = ::mkstemp(name);
        REQUIRE(fd >= 0);
        ::close(fd);
        path = name;
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() { ::unlink(path.c_str()); }
    std::string path;
};

} // namespace

TEST_CASE("child: takes half of the device and waits", "[.child]") {
    const Session session;
    const auto handle = create(std::size_t{512} << 20);
    say_ready();
    ::pause();
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
}

TEST_CASE("child: finds room for half of the device but not for all", "[.child]") {
    say_ready();
    const Session session;
    const auto properties = properties_on(0);
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemCreate(&handle, std::size_t{900} << 20, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(sim_free_bytes(0) == (std::uint64_t{512 - 8 - 8} << 20));
    CHECK(sim_free_bytes(1) == std::uint64_t{1} << 30);
    REQUIRE(cuMemCreate(&handle, std::size_t{400} << 20, &properties, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
}

TEST_CASE("child: has the whole device", "[.child]") {
    say_ready();
    const Session session;
    REQUIRE(cuMemRelease(create(std::size_t{1000} << 20)) == CUDA_SUCCESS);
}

TEST_CASE("Simulated driver: processes compete for memory, and the dead hold none", "[simulated_driver]") {
    const TemporaryFile state;
    const std::vector<std::string> shared = {"GPU_SLEEP_SIM_STATE=" + state.path,
                                             "GPU_SLEEP_SIM_MEMORY=1073741824"};
    Process holder("child: takes half of the device and waits", shared);
    REQUIRE(holder.wait_until_ready());
    CHECK(Process("child: finds room for half of the device but not for all", shared).passed());
    holder.end_with(SIGKILL);
    CHECK(Process("child: has the whole device", shared).passed());
}

TEST_CASE("child: the environment has its way", "[.child]") {
    say_ready();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(count == 3);
    CUcontext context = nullptr;
    REQUIRE(cuCtxCreate(&context, nullptr, 0, 2) == CUDA_SUCCESS);
    CUdeviceptr address = 0;
    CHECK(cuMemAlloc(&address, 64) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc(&address, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    const auto bytes = random_bytes(64);
    std::vector<std::byte> out(64);
    REQUIRE(cuMemcpyHtoD(address, bytes.data(), 64) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH(out.data(), address, 64) == CUDA_SUCCESS);
    CHECK(out != bytes);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(sim_nanoseconds_inside() > 10'000'000);
}

TEST_CASE("Simulated driver: faults by the environment", "[simulated_driver]") {
    const TemporaryFile trace;
    Process child("child: the environment has its way",
                  {"GPU_SLEEP_SIM_DEVICES=3", "GPU_SLEEP_SIM_FAIL=cuMemAlloc:2:2:forever",
                   "GPU_SLEEP_SIM_CORRUPT=*:2", "GPU_SLEEP_SIM_DELAY=cuCtxSynchronize:10ms",
                   "GPU_SLEEP_SIM_TRACE=" + trace.path});
    CHECK(child.passed());
    const auto text = gpu_sleep::test::content_of(trace.path);
    CHECK(text.find(" cuMemAlloc_v2 2 ") != std::string::npos);
    CHECK(text.find(" cuInit 0 ") != std::string::npos);
}
