// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Captures while a part sleeps: kernels are recorded whatever they name, and a capture that waits for what
// sleeps is said to.

#include "callbacks.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_captured_bytes = 4 * k_mib;

struct Capturing : NotCopied {
    Gpu gpu{0};
    TaggedMemory weights{"weights", k_captured_bytes};
    TaggedMemory cache{"kv_cache", k_captured_bytes};
    Words words = random_words(k_captured_bytes, 3);
    CUfunction fill = sim::testing::kernel("sim_fill");
    CUstream stream = sim::testing::make_stream();
    CUcontext context = nullptr;

    Capturing() {
        check(cuCtxGetCurrent(&context));
        weights.write(words);
        cache.write(words);
        sim_reset_counts();
    }
    ~Capturing() {
        CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
        CHECK(sim_fault_counts().illegal_accesses == 0);
        CHECK(sim_fault_counts().broken_captures == 0);
    }

    [[nodiscard]] bool begins(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) const {
        return cuCtxSetCurrent(context) == CUDA_SUCCESS && cuStreamBeginCapture(stream, mode) == CUDA_SUCCESS;
    }
    [[nodiscard]] bool records_fill(const TaggedMemory& memory) const {
        return sim::testing::launch(fill, stream, memory.address(), std::uint64_t{1}, 7U) == CUDA_SUCCESS;
    }
    [[nodiscard]] bool records_copy() const {
        return cuMemcpyDtoDAsync(weights.address(), cache.address(), k_captured_bytes, stream) ==
               CUDA_SUCCESS;
    }
    /// Ends the capture and makes its graph executable.
    [[nodiscard]] CUgraphExec end() const {
        CUgraph graph = nullptr;
        return cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS ? make(graph) : nullptr;
    }
    [[nodiscard]] static CUgraphExec make(CUgraph graph) {
        CUgraphExec executable = nullptr;
        if (cuGraphInstantiate(&executable, graph, 0) != CUDA_SUCCESS) return nullptr;
        return cuGraphDestroy(graph) == CUDA_SUCCESS ? executable : nullptr;
    }
    [[nodiscard]] bool replays(CUgraphExec graph) const {
        return cuCtxSetCurrent(context) == CUDA_SUCCESS && cuGraphLaunch(graph, stream) == CUDA_SUCCESS &&
               cuStreamSynchronize(stream) == CUDA_SUCCESS;
    }
    [[nodiscard]] std::uint32_t first_word(const TaggedMemory& memory) const {
        std::uint32_t word = 0;
        check(cuMemcpyDtoH(&word, memory.address(), sizeof word));
        return word;
    }
};

} // namespace

TEST_CASE("Capture in part: a kernel over sleeping memory is recorded, and its graph waits", "[api]") {
    const Capturing memory;
    const bool is_shut_meanwhile = GENERATE(false, true);
    REQUIRE(command("gpu-sleep", {"--tags", "kv_cache", "--gate", "checked"}) == 0);
    REQUIRE(memory.begins());
    if (is_shut_meanwhile) REQUIRE(command("gpu-sleep", {"--tags", "kv_cache", "--gate", "shut"}) == 0);
    CHECK(memory.records_fill(memory.cache)); // at once
    CHECK(memory.records_fill(memory.weights));
    CUgraph captured = nullptr;
    check(cuStreamEndCapture(memory.stream, &captured));
    if (is_shut_meanwhile) // else making it executable would wait
        REQUIRE(command("gpu-sleep", {"--tags", "kv_cache", "--gate", "checked"}) == 0);
    auto* const graph = Capturing::make(captured);
    REQUIRE(graph);
    sleep("weights"); // no capture is in its way
    wake("weights");
    auto replay = std::async(std::launch::async, [&] { return memory.replays(graph); });
    CHECK(waits(replay));
    wake();
    CHECK(ends(replay));
    CHECK(replay.get());
    CHECK(memory.first_word(memory.cache) == 7);
    check(cuGraphExecDestroy(graph));
}

TEST_CASE("Capture in part: a fork of the capture is recorded too, and no other stream's work", "[api]") {
    const Capturing memory;
    auto* const other = sim::testing::make_stream();
    auto* const event = sim::testing::make_event(CU_EVENT_DISABLE_TIMING);
    REQUIRE(command("gpu-sleep", {"--tags", "kv_cache", "--gate", "checked", "--on-touch", "fail"}) == 0);
    REQUIRE(memory.begins(CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK_FALSE(memory.records_fill(memory.cache)); // any thread may end it just then
    auto* graph = memory.end();
    REQUIRE(graph);
    check(cuGraphExecDestroy(graph));

    REQUIRE(memory.begins());
    CHECK(sim::testing::launch(memory.fill, other, memory.cache.address(), std::uint64_t{1}, 7U) ==
          CUDA_ERROR_SYSTEM_NOT_READY);
    check(cuEventRecord(event, memory.stream));
    check(cuStreamWaitEvent(other, event, 0));
    check(sim::testing::launch(memory.fill, other, memory.cache.address(), std::uint64_t{1}, 7U));
    check(cuEventRecord(event, other));
    check(cuStreamWaitEvent(memory.stream, event, 0));
    graph = memory.end();
    REQUIRE(graph);
    CHECK(cuGraphLaunch(graph, memory.stream) == CUDA_ERROR_SYSTEM_NOT_READY);
    wake();
    CHECK(memory.replays(graph));
    CHECK(memory.first_word(memory.cache) == 7);
    check(cuGraphExecDestroy(graph));
    check(cuEventDestroy(event));
    check(cuStreamDestroy(other));
}

TEST_CASE("Capture in part: a sleep says at once what a capture waits for, and goes on afterwards", "[api]") {
    const Capturing memory;
    REQUIRE(command("gpu-sleep", {"--tags", "kv_cache", "--gate", "checked"}) == 0);
    auto capture = std::async(std::launch::async, [&] {
        CUgraphExec graph = nullptr;
        if (memory.begins() && memory.records_copy()) graph = memory.end();
        return graph;
    });
    CHECK(waits(capture)); // the driver looks at what a copy names
    const auto start = Clock::now();
    CHECK(gpu_sleep_sleep(1, "weights", 20'000) == GPU_SLEEP_ERROR_CAPTURE_IN_PROGRESS);
    CHECK(Clock::now() - start < Milliseconds(10'000));
    const std::string message = gpu_sleep_last_error();
    INFO(message);
    CHECK_THAT(message, mentions("waits for kv_cache, which sleeps: wake it first"));
    wake("kv_cache");
    REQUIRE(ends(capture));
    auto* const graph = capture.get();
    REQUIRE(graph);
    sleep("weights");
    wake();
    CHECK(memory.replays(graph));
    CHECK(memory.weights.read() == memory.words);
    check(cuGraphExecDestroy(graph));
}
