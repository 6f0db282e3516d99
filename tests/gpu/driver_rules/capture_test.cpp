// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Captures: what is recorded, and what breaks one.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

namespace {

/// Runs `call` on another thread, in `mode`, and returns what it returned.
CUresult on_another_thread(CUcontext context, CUstreamCaptureMode mode,
                           const std::function<CUresult()>& call) {
    CUresult status = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
        cuCtxSetCurrent(context);
        cuThreadExchangeStreamCaptureMode(&mode);
        status = call();
    }).join();
    return status;
}

struct UnsafeCall {
    const char* name;
    std::function<CUresult(CUstream own)> call;
};

std::vector<UnsafeCall> unsafe_calls() {
    static std::vector<std::byte> memory(8192);
    return {
        {"synchronise an own stream", [](CUstream own) { return cuStreamSynchronize(own); }},
        {"register host memory",
         [](CUstream) {
             const auto status = cuMemHostRegister(memory.data(), memory.size(), 0);
             if (status == CUDA_SUCCESS) cuMemHostUnregister(memory.data());
             return status;
         }},
        {"allocate plainly",
         [](CUstream) {
             CUdeviceptr address = 0;
             return cuMemAlloc(&address, 4096);
         }},
    };
}

std::vector<UnsafeCall> safe_calls(const Range& range) {
    return {
        {"create and release",
         [](CUstream) {
             const auto properties = properties_on(0);
             CUmemGenericAllocationHandle handle = 0;
             const auto status = cuMemCreate(&handle, k_granularity, &properties, 0);
             return status == CUDA_SUCCESS ? cuMemRelease(handle) : status;
         }},
        {"set access", [&](CUstream) { return grant(range.address, range.bytes, 0); }},
        {"copy on an own stream",
         [&](CUstream own) {
             std::vector<std::byte> host(64);
             return cuMemcpyDtoHAsync(host.data(), range.address, host.size(), own);
         }},
    };
}

/// Ends the capture of `stream`; the graph, if it survived, is destroyed.
CUresult end(CUstream stream) {
    CUgraph graph = nullptr;
    const auto status = cuStreamEndCapture(stream, &graph);
    if (graph) cuGraphDestroy(graph);
    return status;
}

} // namespace

TEST_CASE_METHOD(OnRange, "Driver: a captured graph replays on its addresses, after they were backed anew",
                 "[driver_rules]") {
    PageLocked host(range.bytes);
    const auto stream = make_stream();
    const auto add = kernel("sim_add");
    int calls = 0;
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(range.address, 10, 16, stream) == CUDA_SUCCESS);
    REQUIRE(launch(add, stream, range.address, std::uint64_t{16}, 5U) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync(host.data.data(), range.address, 64, stream) == CUDA_SUCCESS);
    REQUIRE(cuLaunchHostFunc(
                stream, [](void* count) { ++*static_cast<int*>(count); }, &calls) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    CHECK(calls == 0);

    std::size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    REQUIRE(count == 4);
    std::vector<CUgraphNode> nodes(count);
    REQUIRE(cuGraphGetNodes(graph, nodes.data(), &count) == CUDA_SUCCESS);
    CUgraphNodeType type{};
    REQUIRE(cuGraphNodeGetType(nodes[1], &type) == CUDA_SUCCESS);
    CHECK(type == CU_GRAPH_NODE_TYPE_KERNEL);
    CUDA_KERNEL_NODE_PARAMS parameters{};
    REQUIRE(cuGraphKernelNodeGetParams(nodes[1], &parameters) == CUDA_SUCCESS);
    CHECK(parameters.func == add);
    CHECK(*static_cast<CUdeviceptr*>(parameters.kernelParams[0]) == range.address);
    CHECK(cuGraphKernelNodeGetParams(nodes[0], &parameters) == CUDA_ERROR_INVALID_VALUE);

    CUgraphExec exec = nullptr;
    REQUIRE(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    for (int round = 1; round <= 2; ++round) {
        std::fill(host.data.begin(), host.data.end(), std::byte{0});
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(host.data[0] == std::byte{15});
        CHECK(calls == round);
        range.take_away();
        range.bring_back();
    }
    CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnRange, "Driver: a graph whose addresses have no memory behind them faults",
                 "[driver_rules]") {
    const auto stream = make_stream();
    const auto add = kernel("sim_add");
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(launch(add, stream, range.address, std::uint64_t{16}, 5U) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    CUgraphExec exec = nullptr;
    REQUIRE(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
    range.take_away();
    range.abandon();
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE_METHOD(OnRange, "Driver: calls of another thread break a capture as measured", "[driver_rules]") {
    const auto stream = make_stream();
    const auto own = make_stream();
    const auto broken_by = [&](CUstreamCaptureMode capture, CUstreamCaptureMode thread,
                               const UnsafeCall& unsafe) {
        REQUIRE(cuStreamBeginCapture(stream, capture) == CUDA_SUCCESS);
        const auto status = on_another_thread(context, thread, [&] { return unsafe.call(own); });
        const bool broken = end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        CHECK((status == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) == broken);
        return broken;
    };
    constexpr auto k_global = CU_STREAM_CAPTURE_MODE_GLOBAL;
    constexpr auto k_local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    constexpr auto k_relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    for (const auto& unsafe : unsafe_calls()) {
        INFO(unsafe.name);
        CHECK(broken_by(k_global, k_global, unsafe));
        CHECK_FALSE(broken_by(k_global, k_local, unsafe));
        CHECK_FALSE(broken_by(k_global, k_relaxed, unsafe));
        CHECK_FALSE(broken_by(k_local, k_global, unsafe));
        CHECK_FALSE(broken_by(k_relaxed, k_global, unsafe));
    }
    for (const auto& safe : safe_calls(range)) {
        INFO(safe.name);
        CHECK_FALSE(broken_by(k_global, k_global, safe));
    }
    const UnsafeCall synchronize{"cuCtxSynchronize", [](CUstream) { return cuCtxSynchronize(); }};
    auto* const event = make_event(CU_EVENT_DISABLE_TIMING);
    const UnsafeCall record{"cuCtxRecordEvent", [&](CUstream) { return cuCtxRecordEvent(context, event); }};
    for (const auto mode : {k_global, k_local, k_relaxed}) {
        CHECK(broken_by(mode, k_relaxed, synchronize));
        CHECK(broken_by(mode, k_relaxed, record));
    }
}

TEST_CASE_METHOD(OnStream, "Driver: the capturing thread may not make unsafe calls unless it relaxed",
                 "[driver_rules]") {
    CUdeviceptr address = 0;
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, 16) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, 16) == CUDA_SUCCESS);
    CHECK(end(stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (const auto* sim = simulated()) CHECK(sim->fault_counts().broken_captures == 2);
}

TEST_CASE_METHOD(Session, "Driver: asking about a capture does no harm", "[driver_rules]") {
    const auto stream = make_stream(CU_STREAM_DEFAULT);
    CUstreamCaptureStatus status{};
    REQUIRE(cuStreamIsCapturing(nullptr, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(cuStreamIsCapturing(nullptr, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    REQUIRE(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    REQUIRE(cuStreamGetCaptureInfo(stream, &status, &id, &graph, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
    CHECK(id != 0);
    CHECK(graph != nullptr);
    CHECK(cuStreamGetCaptureInfo(nullptr, &status, &id, nullptr, nullptr, nullptr, nullptr) ==
          CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(end(stream) == CUDA_SUCCESS);
    CHECK(end(stream) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE_METHOD(OnRange, "Driver: legacy work breaks the captures that it would depend on",
                 "[driver_rules]") {
    const auto blocking = make_stream(CU_STREAM_DEFAULT);
    REQUIRE(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuMemsetD8(range.address, 1, 16) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(end(blocking) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    const auto non_blocking = make_stream();
    REQUIRE(cuStreamBeginCapture(non_blocking, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuMemsetD8(range.address, 1, 16) == CUDA_SUCCESS);
    CHECK(end(non_blocking) == CUDA_SUCCESS);
    CHECK(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnRange, "Driver: streams join a capture by events, and must come back", "[driver_rules]") {
    const auto origin = make_stream();
    const auto branch = make_stream();
    CUevent fork = nullptr;
    CUevent join = nullptr;
    REQUIRE(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    REQUIRE(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(fork, origin) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(branch, fork, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(range.address, 1, 16, branch) == CUDA_SUCCESS);
    CHECK(cuEventSynchronize(fork) == CUDA_ERROR_CAPTURED_EVENT);
    CHECK(end(origin) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    REQUIRE(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(fork, origin) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(branch, fork, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(range.address, 1, 16, branch) == CUDA_SUCCESS);
    SECTION("it did not") {
        CHECK(end(origin) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    }
    SECTION("it did") {
        REQUIRE(cuEventRecord(join, branch) == CUDA_SUCCESS);
        REQUIRE(cuStreamWaitEvent(origin, join, 0) == CUDA_SUCCESS);
        CHECK(end(origin) == CUDA_SUCCESS);
    }
    SECTION("it went on after it had") {
        REQUIRE(cuEventRecord(join, branch) == CUDA_SUCCESS);
        REQUIRE(cuStreamWaitEvent(origin, join, 0) == CUDA_SUCCESS);
        REQUIRE(cuMemsetD8Async(range.address, 1, 16, branch) == CUDA_SUCCESS);
        CHECK(end(origin) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    }
    SECTION("another stream tries to end it") {
        CHECK(end(branch) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        CUstreamCaptureStatus status{};
        REQUIRE(cuStreamIsCapturing(origin, &status) == CUDA_SUCCESS);
        CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        CHECK(end(origin) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    CHECK(cuStreamSynchronize(branch) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Session, "Driver: who waits for an event amid a capture may break it", "[driver_rules]") {
    const auto origin = make_stream();
    const auto outside = make_stream();
    CUevent done = nullptr;
    CUevent captured = nullptr;
    for (auto* const event : {&done, &captured})
        REQUIRE(cuEventCreate(event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(done, outside) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(outside) == CUDA_SUCCESS);
    auto* const ask = GENERATE(&cuEventQuery, &cuEventSynchronize);
    const auto mode = GENERATE(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED);
    const bool is_relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;

    REQUIRE(cuStreamBeginCapture(origin, mode) == CUDA_SUCCESS);
    CHECK(ask(done) == (is_relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    CHECK(end(origin) == (is_relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));

    REQUIRE(cuStreamBeginCapture(origin, mode) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(captured, origin) == CUDA_SUCCESS);
    CHECK(ask(captured) == CUDA_ERROR_CAPTURED_EVENT);
    CHECK(end(origin) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(cuEventSynchronize(captured) == CUDA_ERROR_INVALID_VALUE); // it never was recorded
}

TEST_CASE_METHOD(OnStream, "Driver: a capture is over when another thread tries to end it",
                 "[driver_rules]") {
    const auto outside = make_stream();
    auto* const event = make_event(CU_EVENT_DISABLE_TIMING);
    REQUIRE(cuEventRecord(event, outside) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
    const auto elsewhere =
        on_another_thread(context, CU_STREAM_CAPTURE_MODE_GLOBAL, [&] { return end(stream); });
    CHECK(elsewhere == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    CHECK(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS); // nothing is captured any more
    CHECK(end(stream) == CUDA_ERROR_ILLEGAL_STATE);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    if (const auto* sim = simulated()) CHECK(sim->live_objects().graphs == 0);
}

TEST_CASE_METHOD(OnStream, "Driver: a capture does not wait for work outside of it", "[driver_rules]") {
    const auto outside = make_stream();
    auto* const event = make_event(CU_EVENT_DISABLE_TIMING);
    REQUIRE(cuEventRecord(event, outside) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(stream, event, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    CHECK(end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (const auto* sim = simulated()) CHECK(sim->live_objects().graphs == 0);
}

TEST_CASE_METHOD(Session, "Driver: a context that is destroyed while it captures", "[driver_rules]") {
    auto* const made = make_context(0);
    const auto stream = make_stream();
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy(made) == CUDA_SUCCESS);
    if (const auto* sim = simulated()) CHECK(sim->live_objects().graphs == 0);
    const auto address = allocate(16);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Driver: a synchronise breaks a capture", "[driver_rules]") {
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (const auto* sim = simulated()) CHECK(sim->fault_counts().broken_captures == 1);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == nullptr);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}
