// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calling thread's capture mode. Nobody waits to change it: in a deep sleep the agent remembers it, and
// the driver is told before the thread's next call.

#pragma once

#include <cuda.h>

namespace gpu_sleep::hooks {

struct CaptureMode {
    CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;    ///< as the thread has set it
    CUstreamCaptureMode driver = CU_STREAM_CAPTURE_MODE_GLOBAL; ///< as the driver knows it
};
extern constinit thread_local CaptureMode t_capture_mode __attribute__((tls_model("initial-exec")));

/// What cuThreadExchangeStreamCaptureMode does, without the driver. False: only the driver can say what is
/// wrong with the argument.
[[nodiscard]] bool exchange_capture_mode(CUstreamCaptureMode* mode) noexcept;

void tell_driver_capture_mode() noexcept;
/// After the thread has passed the gate, and before its call.
inline void settle_capture_mode() noexcept {
    if (t_capture_mode.own != t_capture_mode.driver) [[unlikely]]
        tell_driver_capture_mode();
}

} // namespace gpu_sleep::hooks
