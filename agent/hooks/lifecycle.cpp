// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of initialisation, contexts, streams and captures: a few lines each, no policy.

#include "hooks/deep_answers.hpp"
#include "hooks/driver_table.hpp"
#include "intercepted/contexts.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/memory.hpp"
#include "lifecycle/start.hpp"
#include "registry/registry.hpp"

#include <unwind.h>

namespace gpu_sleep::hooks::own {

CUresult cuInit(unsigned flags) {
    check_interception_setting();
    // The unwinder that is linked into this library knows the registers from its first use on, and a thread
    // that is cancelled in the driver first meets that of the C library, which then needs ours for our
    // frames.
    _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_END_OF_STACK; }, nullptr);
    return noted(real<Entry::cuInit>()(flags), [] { agent::lifecycle::start(); });
}

namespace {

/// Calls the driver's function of the same name and notes the context that it made.
template <Entry entry, class... Arguments>
CUresult create_context(CUcontext* context, Arguments... arguments) {
    const auto call = [=] { return real<entry>()(context, arguments...); };
    // By reference: a std::function of so large a copy would allocate.
    return intercepts() ? intercepted::make_context(context, std::cref(call)) : call();
}

/// Calls the driver's function of the same name, and `ends` around it.
template <Entry entry, auto ends, class Subject>
CUresult end_with(Subject subject) {
    const auto call = [=] { return real<entry>()(subject); };
    return intercepts() ? ends(subject, call) : call();
}

template <Entry entry, class... Arguments>
CUresult begin_capture(CUstream stream, Arguments... arguments) {
    const bool nests = intercepts() && registry::books().captures.has_own();
    const gate::Passage passage(nests ? gate::Touch::nests : k_touch<entry>, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto call = [=] { return real<entry>()(stream, arguments...); };
    if (!intercepts()) return call();
    // The mode of a capture is the last argument; the first entry point of the kind has none.
    const std::tuple modes(CU_STREAM_CAPTURE_MODE_GLOBAL, arguments...);
    const bool any_may_end = std::get<sizeof...(Arguments)>(modes) == CU_STREAM_CAPTURE_MODE_RELAXED;
    return intercepted::begin_capture(stream, k_per_thread<entry>, any_may_end, std::cref(call));
}

template <Entry entry>
CUresult end_capture(CUstream stream, CUgraph* graph) {
    const auto call = [=] { return real<entry>()(stream, graph); };
    return intercepts() ? intercepted::end_capture(stream, k_per_thread<entry>, call) : call();
}

/// Where pools give back what exceeds their thresholds.
template <Entry entry, class... Arguments>
CUresult synchronize(Arguments... arguments) {
    return noted(real<entry>()(arguments...), [] { intercepted::synchronized(); });
}

} // namespace

GPU_SLEEP_SHARE(create_context, create_context)

GPU_SLEEP_SHARE(end_context, end_with, intercepted::end_context)
GPU_SLEEP_SHARE(detach_context, end_with, intercepted::detach_context)
GPU_SLEEP_SHARE(end_green_context, end_with, intercepted::end_green_context)
GPU_SLEEP_SHARE(release_primary_context, end_with, intercepted::release_primary_context)
GPU_SLEEP_SHARE(reset_primary_context, end_with, intercepted::reset_primary_context)
GPU_SLEEP_SHARE(end_stream, end_with, intercepted::end_stream)

GPU_SLEEP_SHARE(begin_capture, begin_capture)
GPU_SLEEP_SHARE(end_capture, end_capture)

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    const auto wanted = mode ? *mode : t_capture_mode.own;
    const auto status = real<Entry::cuThreadExchangeStreamCaptureMode>()(mode);
    if (status == CUDA_SUCCESS) t_capture_mode = {wanted, wanted};
    return status;
}

GPU_SLEEP_SHARE(synchronize, synchronize)

CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources, CUdevice device, unsigned flags) {
    const auto call = [=] { return real<Entry::cuGreenCtxCreate>()(context, resources, device, flags); };
    if (!intercepts()) return call();
    // Converted at once, for its streams say which context it is, too. By reference, as above.
    return intercepted::make_green_context(context, device, std::cref(call), [=](CUcontext* converted) {
        return real<Entry::cuCtxFromGreenCtx>()(converted, *context);
    });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    const auto call = [=] { return real<Entry::cuDevicePrimaryCtxRetain>()(context, device); };
    return intercepts() ? intercepted::retain_primary_context(device, call) : call();
}

// Access stays granted when the program disables it: taking it back would unmap memory that others may still
// use.
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    return noted(real<Entry::cuCtxEnablePeerAccess>()(peer, flags),
                 [=] { intercepted::peer_access_enabled(peer); });
}

} // namespace gpu_sleep::hooks::own
