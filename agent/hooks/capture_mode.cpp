// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Setting it, awake and in a deep sleep.

#include "hooks/capture_mode.hpp"

#include "hooks/driver_table.hpp"

#include <utility>

namespace gpu_sleep::hooks {

constinit thread_local CaptureMode t_capture_mode __attribute__((tls_model("initial-exec")));

bool exchange_capture_mode(CUstreamCaptureMode* mode) noexcept {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    std::swap(*mode, t_capture_mode.own);
    return true;
}

void tell_driver_capture_mode() noexcept {
    auto mode = t_capture_mode.own;
    t_capture_mode.driver = t_capture_mode.own; // once: what fails now fails again
    static_cast<void>(real<Entry::cuThreadExchangeStreamCaptureMode>()(&mode));
}

namespace own {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    const auto wanted = mode ? *mode : t_capture_mode.own;
    const auto status = real<Entry::cuThreadExchangeStreamCaptureMode>()(mode);
    if (status == CUDA_SUCCESS) t_capture_mode = {wanted, wanted};
    return status;
}

} // namespace own
} // namespace gpu_sleep::hooks
