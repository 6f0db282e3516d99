// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Captures of an intercepted program, as they begin, are in the way of others, and end.

#include "devices.hpp"
#include "support/sanitized.hpp"

#include <sys/wait.h>

#include <stop_token>

using namespace gpu_sleep::test;

TEST_CASE_METHOD(Devices, "Lifetimes: a capture ends with its context") {
    const auto own = make_context(0);
    REQUIRE(cuStreamBeginCapture(make_stream(), CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuCtxDestroy(own) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
    CHECK(cuMemFree(allocate()) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(Devices, "Lifetimes: a capture ends with the thread whose stream it is") {
    const auto address = allocate();
    std::thread([&] {
        cuCtxSetCurrent(contexts[0]);
        CHECK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
        CHECK(cuMemFree(address) == CUDA_SUCCESS);
        CHECK(held() == k_bytes); // it waits
        CUgraph graph = nullptr;
        sim_fail("cuStreamEndCapture", 1, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, SIM_ONCE);
        CHECK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        CHECK(held() == k_bytes);
        sim_clear();
    }).join();
    CHECK(held() == 0);
}

TEST_CASE("Lifetimes: a child of fork ends, whatever its parent's threads were at") {
    constexpr int k_children = 2'000;
    constexpr unsigned k_patience_s = 20;
    if (is_sanitized()) return skip("a sanitizer's allocator may be locked in a child for ever");
    Devices devices;
    const auto capture = [](CUstream stream) {
        CUgraph graph = nullptr;
        return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS &&
               cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS;
    };
    REQUIRE(capture(CU_STREAM_PER_THREAD));
    const std::jthread captures([&, stream = make_stream()](const std::stop_token& stop) {
        cuCtxSetCurrent(devices.contexts[0]);
        while (!stop.stop_requested() && capture(stream)) {
        }
    });
    int status = 0;
    for (int i = 0; i < k_children && status == 0; ++i) {
        const auto child = ::fork();
        if (child == 0) {
            ::alarm(k_patience_s);
            std::atexit([] { ::_exit(0); }); // after what the thread's end does, and before all else
            std::exit(1);
        }
        REQUIRE(::waitpid(child, &status, 0) == child);
    }
    CHECK(status == 0);
}

TEST_CASE_METHOD(OnStream, "Lifetimes: a capture is over when the wrong thread is to end it") {
    const auto address = allocate();
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_SUCCESS);
    CUgraph graph = nullptr;
    std::thread([&] {
        cuCtxSetCurrent(contexts[0]);
        auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        CHECK(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
        CHECK(cuMemFree(address) == CUDA_SUCCESS);
        CHECK(held() == k_bytes); // it waits
        CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }).join();
    CHECK(held() == 0);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(cuMemFree(allocate()) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(Devices, "Lifetimes: a capture goes on when the wrong stream is to end it") {
    const auto origin = make_stream();
    const auto branch = make_stream();
    auto* const fork = make_event(CU_EVENT_DISABLE_TIMING);
    const auto address = allocate();
    CUgraph graph = nullptr;
    REQUIRE(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(fork, origin) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(branch, fork, 0) == CUDA_SUCCESS);
    CHECK(cuStreamEndCapture(branch, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(held() == k_bytes);
    CHECK(cuStreamEndCapture(origin, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(held() == 0);
    CHECK(cuEventDestroy(fork) == CUDA_SUCCESS);
}

TEST_CASE("Lifetimes: a capture begins while a free waits for the device, and is not broken") {
    constexpr std::chrono::milliseconds k_moment{100};
    constexpr std::chrono::seconds k_patience{20};
    Devices devices;
    const auto busy = make_stream();
    const auto captured = make_stream();
    const auto address = allocate();
    const Gate gate(busy);
    const auto enters = [&] { return cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS; };
    auto frees =
        std::async(std::launch::async, [&] { return enters() && cuMemFree(address) == CUDA_SUCCESS; });
    CHECK(frees.wait_for(k_moment) == std::future_status::timeout);
    CUgraph graph = nullptr;
    std::promise<void> has_begun, is_free;
    auto captures = std::async(std::launch::async, [&] {
        const bool begins =
            enters() && cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS;
        has_begun.set_value();
        is_free.get_future().wait();
        return begins && cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS;
    });
    CHECK(has_begun.get_future().wait_for(k_patience) == std::future_status::ready);
    CHECK(held() >= k_bytes);
    gate.release();
    CHECK(frees.get());
    CHECK(held() == 0);
    is_free.set_value();
    CHECK(captures.get());
    CHECK(sim_fault_counts().broken_captures == 0);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("Lifetimes: memory that is freed amid a capture can be had again when it is short") {
    constexpr std::chrono::milliseconds k_moment{100};
    const auto mode = GENERATE(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                               CU_STREAM_CAPTURE_MODE_RELAXED);
    Devices devices;
    auto* const busy = make_stream();
    auto* const captured = make_stream();
    const auto most = sim_free_bytes(0) / 3 * 2;
    const auto take_most = [&](CUdeviceptr& address) { return cuMemAlloc(&address, most); };
    CUdeviceptr first = 0, second = 0;
    REQUIRE(take_most(first) == CUDA_SUCCESS);
    const Gate gate(busy);
    REQUIRE(launch(kernel("sim_fill"), busy, first, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(captured, mode) == CUDA_SUCCESS);
    CHECK(cuMemFree(first) == CUDA_SUCCESS); // waits for the capture to end
    auto takes = std::async(std::launch::async, [&] {
        return cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS && take_most(second) == CUDA_SUCCESS;
    });
    CHECK(takes.wait_for(k_moment) == std::future_status::timeout); // the first is in use
    gate.release();
    CHECK(takes.get());
    CHECK(cuMemFree(second) == CUDA_SUCCESS);
    CUdeviceptr third = 0;
    CHECK(take_most(third) == CUDA_SUCCESS); // in the thread that captures
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    CHECK(sim_fault_counts().broken_captures == 0);
    CHECK(cuMemFree(third) == CUDA_SUCCESS);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Lifetimes: a capture ends with its stream") {
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuMemFree(allocate()) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(held() == 0);
}
