// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The rules of stream capture.

#include "support/simulated_driver/captures.hpp"

#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/graph_memory.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::sim {
namespace {

/// Whether an unsafe call of this thread, in its mode, is forbidden by `capture`.
bool forbids(const Capture& capture) {
    const bool own = capture.thread == thread_id() && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    switch (thread_capture_mode()) {
    case CU_STREAM_CAPTURE_MODE_GLOBAL: return own || capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: return own;
    default: return false;
    }
}

} // namespace

CUstreamCaptureMode& thread_capture_mode() noexcept {
    thread_local CUstreamCaptureMode s_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return s_mode;
}

void break_it(Capture& capture) {
    if (std::exchange(capture.broken, true)) return;
    ++Counts::instance().broken_captures;
}

void leave(Driver& driver, const std::shared_ptr<Capture>& capture) {
    for (const auto& [stream, clock] : capture->streams) stream->capture = nullptr;
    std::erase(driver.captures, capture);
    capture->streams.clear();
}

CUresult refuse_during_capture(Driver& driver) {
    auto status = CUDA_SUCCESS;
    for (const auto& capture : driver.captures) {
        if (capture->broken || !forbids(*capture)) continue;
        break_it(*capture);
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return status;
}

bool break_captures_of(Driver& driver, const Context& context) {
    bool any = false;
    for (const auto& capture : driver.captures) {
        if (capture->context != &context || capture->broken) continue;
        break_it(*capture);
        any = true;
    }
    return any;
}

CUresult break_capture(Stream& stream) {
    break_it(*stream.capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult break_capture_of(const Event& event) {
    const auto capture = event.capture.lock();
    if (!capture || capture->streams.empty()) return CUDA_ERROR_INVALID_VALUE; // it is over
    break_it(*capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

void forget_captures(Driver& driver, const Context& context) {
    const auto captures = driver.captures;
    for (const auto& capture : captures) {
        if (capture->context != &context) continue;
        leave(driver, capture);
        destroy_graph(driver, capture->graph);
    }
}

bool depends_on_capture(const Stream& stream) {
    if (stream.kind() != Stream::Kind::legacy) return false;
    const auto& streams = stream.context.streams;
    return std::any_of(streams.begin(), streams.end(),
                       [](const auto& s) { return s->blocks_legacy() && s->capture && !s->capture->broken; });
}

CUresult refuse_implicit_dependency(Driver& driver, const Stream& stream) {
    if (!depends_on_capture(stream)) return CUDA_SUCCESS;
    for (const auto& capture : driver.captures) {
        const bool blocked =
            std::any_of(capture->streams.begin(), capture->streams.end(), [&](const auto& s) {
                return &s.first->context == &stream.context && s.first->blocks_legacy();
            });
        if (blocked) break_it(*capture);
    }
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUgraphNode add_node(Driver& driver, Graph& graph, std::shared_ptr<const Work> work) {
    const auto node = std::make_shared<Graph::Node>(Graph::Node{nullptr, std::move(work)});
    node->handle = driver.nodes.insert(node);
    graph.nodes.push_back(node);
    return node->handle;
}

CUresult record(Driver& driver, Stream& stream, std::shared_ptr<const Work> work) {
    auto& capture = *stream.capture;
    if (capture.broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    add_node(driver, *driver.graphs.find(capture.graph), std::move(work));
    for (auto& [member, clock] : capture.streams)
        if (member.get() == &stream) ++clock[&stream];
    return CUDA_SUCCESS;
}

CUresult record_captured(Stream& stream, Event& event) {
    if (stream.capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event.tickets.clear();
    event.stamp = nullptr;
    event.captured = true;
    event.capture = stream.capture;
    for (const auto& [member, clock] : stream.capture->streams)
        if (member.get() == &stream) event.clock = clock;
    return CUDA_SUCCESS;
}

CUresult wait_captured(const std::shared_ptr<Stream>& stream, const Event& event) {
    const auto capture = event.capture.lock();
    if (!capture || capture->streams.empty()) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        break_it(*capture);
        break_it(*stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    stream->capture = capture;
    auto& clock = capture->streams[stream];
    clock.try_emplace(stream.get(), 0);
    for (const auto& [other, count] : event.clock) clock[other] = std::max(clock[other], count);
    return CUDA_SUCCESS;
}

void destroy_graph(Driver& driver, CUgraph handle) {
    const auto graph = driver.graphs.remove(handle);
    if (!graph) return;
    for (const auto& node : graph->nodes) driver.nodes.remove(node->handle);
    graph->nodes.clear();
    forget_graph_memory(driver);
}

} // namespace gpu_sleep::sim
