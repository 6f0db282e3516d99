// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Signals that are sent, which are the program's and not the simulated driver's, amid a kernel, too; and
// what the driver says where the system gives it no thread.

#include "support/failing_call.hpp"
#include "support/own_action.hpp"
#include "support/sanitized.hpp"
#include "support/simulated_driver/testing.hpp"
#include "support/skip.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

using namespace gpu_sleep::sim::testing;

namespace {

std::atomic<int> signals{0};

} // namespace

TEST_CASE("Simulated driver: a SIGSEGV that the program ignores, or takes, is none of the driver's",
          "[simulated_driver]") {
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

TEST_CASE("Simulated driver: where no thread can be had a call says so, and has done nothing",
          "[simulated_driver]") {
    const Session session;
    const Range range;
    CUcontext context = nullptr;
    REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
    auto* const stream = make_stream();
    auto* const add = kernel("sim_add");
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
    CUdeviceptr pooled = 0;
    REQUIRE(cuMemAllocAsync(&pooled, 4096, CU_STREAM_LEGACY) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    const auto words = std::uint64_t{4};
    std::vector<CUresult> refused;
    const auto call_all = [&] {
        if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return;
        refused.push_back(launch(add, stream, range.address, words, 1U));
        refused.push_back(cuMemsetD8Async(range.address, 7, 16, stream));
        refused.push_back(cuEventRecord(event, stream));
        CUdeviceptr more = 0;
        refused.push_back(cuMemAllocAsync(&more, 4096, stream));
        refused.push_back(cuMemFreeAsync(pooled, stream));
    };
    REQUIRE(cuMemsetD8(range.address, 0, 16) == CUDA_SUCCESS);
    const auto live = sim_live_objects();
    if (!gpu_sleep::test::with_failing_calls({{__NR_clone3, EAGAIN}, {__NR_clone, EAGAIN}}, call_all))
        return gpu_sleep::test::skip_without_right("filter its system calls");
    CHECK(refused == std::vector<CUresult>(5, CUDA_ERROR_OUT_OF_MEMORY));
    CHECK(sim_live_objects().physical_bytes == live.physical_bytes);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    std::uint32_t word = 1;
    REQUIRE(cuMemcpyDtoH(&word, range.address, sizeof(word)) == CUDA_SUCCESS);
    CHECK(word == 0);

    CHECK(launch(add, stream, range.address, words, 1U) == CUDA_SUCCESS);
    CHECK(cuEventRecord(event, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(pooled, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH(&word, range.address, sizeof(word)) == CUDA_SUCCESS);
    CHECK(word == 1);
    CHECK(cuEventDestroy(event) == CUDA_SUCCESS);
}
