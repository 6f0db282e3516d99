// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of initialisation, contexts, streams and captures: a few lines each, no policy.

#include "hooks/driver_table.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/contexts.hpp"
#include "intercepted/peers.hpp"
#include "intercepted/pools.hpp"
#include "intercepted/streams.hpp"
#include "intercepted/trimming.hpp"
#include "life/start.hpp"

#include <functional>
#include <tuple>

namespace gpu_sleep::hooks::own {

CUresult cuInit(unsigned flags) {
    check_interception_setting();
    return noted(real<Entry::cuInit>()(flags), [] { agent::life::start(); });
}

namespace {

/// Calls the driver's function of the same name and notes the context that it made.
template <Entry entry, class... Arguments>
CUresult create_context(CUcontext* context, Arguments... arguments) {
    return noted(real<entry>()(context, arguments...), [=] { intercepted::context_created(*context); });
}

/// Calls the driver's function of the same name, and `ends` around it.
template <Entry entry, class Subject>
CUresult end_with(CUresult (*ends)(Subject, const std::function<CUresult()>&), Subject subject) {
    const auto call = [=] { return real<entry>()(subject); };
    return intercepts() ? ends(subject, call) : call();
}

/// The mode of a capture is the last argument; the first entry point of the kind has none.
CUstreamCaptureMode capture_mode() {
    return CU_STREAM_CAPTURE_MODE_GLOBAL;
}
template <class... Arguments>
CUstreamCaptureMode capture_mode(Arguments... arguments) {
    return std::get<sizeof...(Arguments) - 1>(std::tuple(arguments...));
}

template <Entry entry, class... Arguments>
CUresult begin_capture(bool per_thread, CUstream stream, Arguments... arguments) {
    const bool is_intercepted = intercepts();
    const bool nests = is_intercepted && intercepted::has_capture_open();
    const gate::Passage passage(nests ? gate::Touch::nests : k_touch<entry>, k_name<entry>);
    if (!passage.admitted()) return refused();
    // Noted first: once it has begun, no free may wait for the device.
    const bool any_may_end = capture_mode(arguments...) == CU_STREAM_CAPTURE_MODE_RELAXED;
    const auto number = is_intercepted ? intercepted::capture_begins(stream, per_thread, any_may_end) : 0;
    const auto status = real<entry>()(stream, arguments...);
    if (status != CUDA_SUCCESS && is_intercepted) intercepted::capture_failed(stream, per_thread, number);
    return status;
}

template <Entry entry>
CUresult end_capture(bool per_thread, CUstream stream, CUgraph* graph) {
    if (!intercepts()) return real<entry>()(stream, graph);
    const auto number = intercepted::capture_ends(stream, per_thread);
    const auto status = real<entry>()(stream, graph);
    intercepted::capture_ended(stream, per_thread, number, status);
    return status;
}

} // namespace

CUresult cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
    return create_context<Entry::cuCtxCreate>(context, flags, device);
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    return create_context<Entry::cuCtxCreate_v2>(context, flags, device);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* parameters, int count, unsigned flags,
                        CUdevice device) {
    return create_context<Entry::cuCtxCreate_v3>(context, parameters, count, flags, device);
}
#ifdef GPU_SLEEP_HAS_cuCtxCreate_v4
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
    return create_context<Entry::cuCtxCreate_v4>(context, parameters, flags, device);
}
#endif

CUresult cuCtxDestroy(CUcontext context) {
    return end_with<Entry::cuCtxDestroy>(intercepted::end_context, context);
}
CUresult cuCtxDestroy_v2(CUcontext context) {
    return end_with<Entry::cuCtxDestroy_v2>(intercepted::end_context, context);
}
CUresult cuCtxDetach(CUcontext context) {
    return end_with<Entry::cuCtxDetach>(intercepted::detach_context, context);
}

CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources, CUdevice device, unsigned flags) {
    const auto call = [=] { return real<Entry::cuGreenCtxCreate>()(context, resources, device, flags); };
    if (!intercepts()) return call();
    // Converted at once, for its streams say which context it is, too.
    return intercepted::make_green_context(context, device, call, [=](CUcontext* converted) {
        return real<Entry::cuCtxFromGreenCtx>()(converted, *context);
    });
}
CUresult cuGreenCtxDestroy(CUgreenCtx context) {
    return end_with<Entry::cuGreenCtxDestroy>(intercepted::end_green_context, context);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    const auto call = [=] { return real<Entry::cuDevicePrimaryCtxRetain>()(context, device); };
    return intercepts() ? intercepted::retain_primary_context(device, call) : call();
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return end_with<Entry::cuDevicePrimaryCtxRelease>(intercepted::release_primary_context, device);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return end_with<Entry::cuDevicePrimaryCtxRelease_v2>(intercepted::release_primary_context, device);
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return end_with<Entry::cuDevicePrimaryCtxReset>(intercepted::reset_primary_context, device);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return end_with<Entry::cuDevicePrimaryCtxReset_v2>(intercepted::reset_primary_context, device);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    return noted(real<Entry::cuCtxEnablePeerAccess>()(peer, flags),
                 [=] { intercepted::peer_access_enabled(peer); });
}

// What was granted stays granted: taking it back would unmap what others may still use.
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return real<Entry::cuCtxDisablePeerAccess>()(peer);
}

CUresult cuStreamBeginCapture(CUstream stream) {
    return begin_capture<Entry::cuStreamBeginCapture>(false, stream);
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return begin_capture<Entry::cuStreamBeginCapture_ptsz>(true, stream);
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture<Entry::cuStreamBeginCapture_v2>(false, stream, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture<Entry::cuStreamBeginCapture_v2_ptsz>(true, stream, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, std::size_t count,
                                     CUstreamCaptureMode mode) {
    return begin_capture<Entry::cuStreamBeginCaptureToGraph>(false, stream, graph, dependencies, edges, count,
                                                             mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* edges, std::size_t count,
                                          CUstreamCaptureMode mode) {
    return begin_capture<Entry::cuStreamBeginCaptureToGraph_ptsz>(true, stream, graph, dependencies, edges,
                                                                  count, mode);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    return end_capture<Entry::cuStreamEndCapture>(false, stream, graph);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
    return end_capture<Entry::cuStreamEndCapture_ptsz>(true, stream, graph);
}

CUresult cuStreamDestroy(CUstream stream) {
    return end_with<Entry::cuStreamDestroy>(intercepted::end_stream, stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    return end_with<Entry::cuStreamDestroy_v2>(intercepted::end_stream, stream);
}

namespace {

/// A synchronisation is where pools give back what exceeds their thresholds.
CUresult after_wait(CUresult status) {
    return noted(status, [] { intercepted::synchronized(); });
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
#ifdef GPU_SLEEP_HAS_cuCtxSynchronize_v2
CUresult cuCtxSynchronize_v2(CUcontext context) {
    return after_wait(real<Entry::cuCtxSynchronize_v2>()(context));
}
#endif

} // namespace gpu_sleep::hooks::own
