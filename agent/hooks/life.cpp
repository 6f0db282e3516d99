// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of initialisation, contexts, streams and captures: a few lines each, no policy.

#include "caught/caught.hpp"
#include "hooks/driver_table.hpp"

namespace gpu_sleep::hooks::own {

using gate::Passage;
using gate::Touch;

CUresult cuInit(unsigned flags) {
    const auto status = real<Entry::cuInit>()(flags);
    if (status == CUDA_SUCCESS && catches()) agent::caught::start();
    return status;
}

namespace {

/// Calls the driver's function of the same name and notes the context that it made.
template <Entry entry, class... Arguments>
CUresult create_context(CUcontext* context, Arguments... arguments) {
    const Passage passage(Touch::takes, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto status = real<entry>()(context, arguments...);
    if (status == CUDA_SUCCESS && catches()) agent::caught::context_created(*context);
    return status;
}

template <Entry entry>
CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode, bool per_thread) {
    const Passage passage(Touch::captures, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto status = real<entry>()(stream, mode);
    if (status == CUDA_SUCCESS && catches()) agent::caught::capture_began(stream, per_thread);
    return status;
}

template <Entry entry, class... Arguments>
CUresult begin_capture_to_graph(bool per_thread, CUstream stream, Arguments... arguments) {
    const Passage passage(Touch::captures, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto status = real<entry>()(stream, arguments...);
    if (status == CUDA_SUCCESS && catches()) agent::caught::capture_began(stream, per_thread);
    return status;
}

template <Entry entry>
CUresult end_capture(CUstream stream, CUgraph* graph, bool per_thread) {
    const auto status = real<entry>()(stream, graph);
    // A broken capture is over too; only a stream that was not capturing changes nothing.
    if (catches()) agent::caught::capture_ended(stream, per_thread);
    return status;
}

} // namespace

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    return create_context<Entry::cuCtxCreate_v2>(context, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* parameters, int count, unsigned flags,
                        CUdevice device) {
    return create_context<Entry::cuCtxCreate_v3>(context, parameters, count, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
    return create_context<Entry::cuCtxCreate_v4>(context, parameters, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    const Passage passage(Touch::ends, k_name<Entry::cuCtxDestroy_v2>);
    if (!passage.admitted()) return refused();
    const auto status = real<Entry::cuCtxDestroy_v2>()(context);
    if (status == CUDA_SUCCESS && catches()) agent::caught::context_destroyed(context);
    return status;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    const Passage passage(Touch::ends, k_name<Entry::cuDevicePrimaryCtxReset_v2>);
    if (!passage.admitted()) return refused();
    const auto status = real<Entry::cuDevicePrimaryCtxReset_v2>()(device);
    if (status == CUDA_SUCCESS && catches()) agent::caught::primary_context_gone(device);
    return status;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    const Passage passage(Touch::ends, k_name<Entry::cuDevicePrimaryCtxRelease_v2>);
    if (!passage.admitted()) return refused();
    const auto status = real<Entry::cuDevicePrimaryCtxRelease_v2>()(device);
    if (status == CUDA_SUCCESS && catches()) agent::caught::primary_context_gone(device);
    return status;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    const auto status = real<Entry::cuCtxEnablePeerAccess>()(peer, flags);
    if (status == CUDA_SUCCESS && catches()) agent::caught::peer_access_enabled(peer);
    return status;
}

// What was granted stays granted: taking it back would unmap what others may still use.
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return real<Entry::cuCtxDisablePeerAccess>()(peer);
}

CUresult cuStreamBeginCapture(CUstream stream) {
    const Passage passage(Touch::captures, k_name<Entry::cuStreamBeginCapture>);
    if (!passage.admitted()) return refused();
    const auto status = real<Entry::cuStreamBeginCapture>()(stream);
    if (status == CUDA_SUCCESS && catches()) agent::caught::capture_began(stream, false);
    return status;
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    const Passage passage(Touch::captures, k_name<Entry::cuStreamBeginCapture_ptsz>);
    if (!passage.admitted()) return refused();
    const auto status = real<Entry::cuStreamBeginCapture_ptsz>()(stream);
    if (status == CUDA_SUCCESS && catches()) agent::caught::capture_began(stream, true);
    return status;
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture<Entry::cuStreamBeginCapture_v2>(stream, mode, false);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture<Entry::cuStreamBeginCapture_v2_ptsz>(stream, mode, true);
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, std::size_t count, CUstreamCaptureMode mode) {
    return begin_capture_to_graph<Entry::cuStreamBeginCaptureToGraph>(false, stream, graph, dependencies, edges,
                                                                      count, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* edges, std::size_t count,
                                          CUstreamCaptureMode mode) {
    return begin_capture_to_graph<Entry::cuStreamBeginCaptureToGraph_ptsz>(true, stream, graph, dependencies, edges,
                                                                           count, mode);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    return end_capture<Entry::cuStreamEndCapture>(stream, graph, false);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
    return end_capture<Entry::cuStreamEndCapture_ptsz>(stream, graph, true);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    const auto status = real<Entry::cuStreamDestroy_v2>()(stream);
    if (status == CUDA_SUCCESS && catches()) {
        agent::caught::stream_destroyed(stream);
        agent::caught::capture_ended(stream, false);
    }
    return status;
}

namespace {

/// A synchronisation is where pools give back what exceeds their thresholds.
CUresult after_wait(CUresult status) {
    if (status == CUDA_SUCCESS && catches()) agent::caught::synchronized();
    return status;
}

} // namespace

CUresult cuStreamSynchronize(CUstream stream) {
    return after_wait(real<Entry::cuStreamSynchronize>()(stream));
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return after_wait(real<Entry::cuStreamSynchronize_ptsz>()(stream));
}
CUresult cuEventSynchronize(CUevent event) {
    return after_wait(real<Entry::cuEventSynchronize>()(event));
}
CUresult cuCtxSynchronize() {
    return after_wait(real<Entry::cuCtxSynchronize>()());
}
CUresult cuCtxSynchronize_v2(CUcontext context) {
    return after_wait(real<Entry::cuCtxSynchronize_v2>()(context));
}

} // namespace gpu_sleep::hooks::own
