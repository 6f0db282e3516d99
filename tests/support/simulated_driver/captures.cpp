// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The rules of stream capture, and the calls that begin, end and query one.

#include "support/simulated_driver/captures.hpp"

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/graph_memory.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::sim {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void break_it(Capture& capture) {
    if (std::exchange(capture.broken, true)) return;
    ++Counts::instance().broken_captures;
}

/// Whether an unsafe call of this thread, in its mode, is forbidden by `capture`.
bool forbids(const Capture& capture) {
    const bool own = capture.thread == thread_id() && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    switch (thread_mode) {
    case CU_STREAM_CAPTURE_MODE_GLOBAL: return own || capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: return own;
    default: return false;
    }
}

/// Whether all work of the capture leads back to its origin.
bool is_joined(const Capture& capture) {
    const auto& [origin, known] =
        *std::find_if(capture.streams.begin(), capture.streams.end(),
                      [&](const auto& s) { return s.first.get() == capture.origin; });
    return std::all_of(capture.streams.begin(), capture.streams.end(), [&, &clock = known](const auto& s) {
        const auto* stream = s.first.get();
        if (stream == capture.origin) return true;
        const auto own = s.second.find(stream);
        const auto joined = clock.find(stream);
        return joined != clock.end() && joined->second >= own->second;
    });
}

void leave(Driver& driver, const std::shared_ptr<Capture>& capture) {
    for (const auto& [stream, clock] : capture->streams) stream->capture = nullptr;
    std::erase(driver.captures, capture);
    capture->streams.clear();
}

CUresult end_capture(Driver& driver, const std::shared_ptr<Capture>& capture, CUgraph* graph) {
    *graph = nullptr;
    auto status = CUDA_SUCCESS;
    if (capture->broken)
        status = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(*capture))
        status = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    leave(driver, capture);
    if (status == CUDA_SUCCESS)
        *graph = capture->graph;
    else
        destroy_graph(driver, capture->graph); // also one that was the program's before
    return status;
}

CUresult begin_capture(Driver& driver, const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode,
                       CUgraph graph) {
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->kind() == Stream::Kind::legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    const auto capture = std::make_shared<Capture>();
    capture->id = driver.next_id++;
    capture->mode = mode;
    capture->thread = thread_id();
    capture->origin = stream.get();
    capture->context = &stream->context;
    capture->graph = graph ? graph : driver.graphs.insert(std::make_shared<Graph>());
    capture->streams[stream][stream.get()] = 0;
    stream->capture = capture;
    driver.captures.push_back(capture);
    return CUDA_SUCCESS;
}

CUstreamCaptureStatus status_of(const Stream& stream) noexcept {
    if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream.capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

} // namespace

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

using namespace gpu_sleep::sim;

SIM_ENTRY(safe, 10010) cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return call(Entry::cuThreadExchangeStreamCaptureMode, [&](Call&) {
        if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
            return CUDA_ERROR_INVALID_VALUE;
        std::swap(*mode, thread_mode);
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(safe, 10010) cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    return call_in_context(Entry::cuStreamBeginCapture, [&](Call& c, Context& context) {
        return begin_capture(c.driver, find_stream(c.driver, context, handle), mode, nullptr);
    });
}

SIM_ENTRY(safe, 12030)
cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode*, const CUgraphEdgeData*,
                            std::size_t, CUstreamCaptureMode mode) {
    return call_in_context(Entry::cuStreamBeginCaptureToGraph, [&](Call& c, Context& context) {
        if (!c.driver.graphs.find(graph)) return CUDA_ERROR_INVALID_VALUE;
        return begin_capture(c.driver, find_stream(c.driver, context, handle), mode, graph);
    });
}

SIM_ENTRY(safe, 10000) cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    return call_in_context(Entry::cuStreamEndCapture, [&](Call& c, Context& context) {
        const auto stream = find_stream(c.driver, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!graph) return CUDA_ERROR_INVALID_VALUE;
        const auto capture = stream->capture;
        if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
        if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_id()) {
            break_it(*capture); // and it is over
            end_capture(c.driver, capture, graph);
            return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
        }
        if (capture->origin != stream.get()) {
            break_it(*capture);
            return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        }
        return end_capture(c.driver, capture, graph);
    });
}

SIM_ENTRY(safe, 10000) cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    return call_in_context(Entry::cuStreamIsCapturing, [&](Call& c, Context& context) {
        const auto stream = find_stream(c.driver, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!status) return CUDA_ERROR_INVALID_VALUE;
        if (depends_on_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        *status = status_of(*stream);
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(safe, 12030)
cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                       const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                       std::size_t* dependency_count) {
    return call_in_context(Entry::cuStreamGetCaptureInfo, [&](Call& c, Context& context) {
        const auto stream = find_stream(c.driver, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (!status) return CUDA_ERROR_INVALID_VALUE;
        if (depends_on_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        *status = status_of(*stream);
        if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
        if (id) *id = stream->capture->id;
        if (graph) *graph = stream->capture->graph;
        // Order is all that is simulated; there are no edges to show.
        if (dependencies) *dependencies = nullptr;
        if (edges) *edges = nullptr;
        if (dependency_count) *dependency_count = 0;
        return CUDA_SUCCESS;
    });
}
