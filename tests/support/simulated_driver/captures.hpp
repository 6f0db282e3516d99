// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream capture: who captures, what breaks it, and what it records. All under the driver's lock.

#pragma once

#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/work_item.hpp"

#include <memory>

namespace gpu_sleep::sim {

/// How the calling thread treats calls that could break a capture: cuThreadExchangeStreamCaptureMode.
[[nodiscard]] CUstreamCaptureMode& thread_capture_mode() noexcept;
void break_it(Capture& capture);
/// The capture is over: its streams capture nothing more.
void leave(Driver& driver, const std::shared_ptr<Capture>& capture);
/// Breaks every capture of `context`, as calls do that no capture survives; whether there was one.
bool break_captures_of(Driver& driver, const Context& context);

/// Breaks the capture of `stream`, which has one. Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
CUresult break_capture(Stream& stream);

/// Breaks the capture that an event was recorded in, if it goes on. Returns CUDA_ERROR_CAPTURED_EVENT.
CUresult break_capture_of(const Event& event);

/// Ends the captures of a context that is being destroyed.
void forget_captures(Driver& driver, const Context& context);

/// Whether a blocking stream of the context of `stream` captures while `stream` is the legacy stream.
[[nodiscard]] bool depends_on_capture(const Stream& stream);

/// Work in `stream` now: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, and those captures are broken, if
/// depends_on_capture().
CUresult refuse_implicit_dependency(Driver& driver, const Stream& stream);

/// Adds a node to a graph, behind all others.
CUgraphNode add_node(Driver& driver, Graph& graph, std::shared_ptr<const Work> work);

/// Adds `work` to the graph that `stream` captures. Errors: STREAM_CAPTURE_INVALIDATED.
CUresult record(Driver& driver, Stream& stream, std::shared_ptr<const Work> work);

/// Records `event` in a stream that captures: others that wait for it join the capture.
CUresult record_captured(Stream& stream, Event& event);

/// Lets `stream` wait for an event that was recorded in a capture: it joins. Errors: STREAM_CAPTURE_MERGE,
/// STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION (the capture is over).
CUresult wait_captured(const std::shared_ptr<Stream>& stream, const Event& event);

/// Takes a graph and its nodes out of the tables.
void destroy_graph(Driver& driver, CUgraph graph);

} // namespace gpu_sleep::sim
