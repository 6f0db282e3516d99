// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calls that begin, end and query stream captures.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/faults.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace gpu_sleep::sim {
namespace {

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
} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 10010) cuThreadExchangeStreamCaptureMode(Call&, CUstreamCaptureMode* mode) {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_capture_mode());
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10010)
cuStreamBeginCapture(Call& c, Context& context, CUstream handle, CUstreamCaptureMode mode) {
    return begin_capture(c.driver, find_stream(c.driver, context, handle), mode, nullptr);
}

SIM_ENTRY(safe, 12030)
cuStreamBeginCaptureToGraph(Call& c, Context& context, CUstream handle, CUgraph graph, const CUgraphNode*,
                            const CUgraphEdgeData*, std::size_t, CUstreamCaptureMode mode) {
    if (!c.driver.graphs.find(graph)) return CUDA_ERROR_INVALID_VALUE;
    return begin_capture(c.driver, find_stream(c.driver, context, handle), mode, graph);
}

SIM_ENTRY(safe, 10000) cuStreamEndCapture(Call& c, Context& context, CUstream handle, CUgraph* graph) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    SIM_FIND(capture, stream->capture, CUDA_ERROR_ILLEGAL_STATE);
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
}

SIM_ENTRY(safe, 10000)
cuStreamIsCapturing(Call& c, Context& context, CUstream handle, CUstreamCaptureStatus* status) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    if (depends_on_capture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = status_of(*stream);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12030)
cuStreamGetCaptureInfo(Call& c, Context& context, CUstream handle, CUstreamCaptureStatus* status,
                       cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                       const CUgraphEdgeData** edges, std::size_t* dependency_count) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
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
}
