// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pinning in a context of the moment.

#include "contents/pinner.hpp"

#include "base/guard.hpp"
#include "driver/context.hpp"
#include "driver/device_session.hpp"

namespace gpu_sleep::contents {

Result<void> DriverPinner::pin(std::span<std::byte> memory) {
    const auto alive = driver::first_active_context(api_);
    if (!alive) return alive.error();
    if (!alive->has_value())
        return make_error(ErrorCode::driver_failed, "there is no context to pin host memory in");
    const driver::RelaxedCaptureMode relaxed(api_);
    const driver::CurrentContext current(api_, (*alive)->get());
    return driver::pin_host_memory(api_, memory);
}

bool DriverPinner::unpin(std::span<std::byte> memory) noexcept {
    constexpr int k_tries = 2; // a context may vanish between its being found and entered
    const driver::RelaxedCaptureMode relaxed(api_);
    for (int i = 0; i < k_tries; ++i) {
        const auto unpinned = guarded([&]() -> Result<void> {
            const auto alive = driver::first_active_context(api_);
            if (!alive) return alive.error();
            if (!alive->has_value()) return {}; // its registration went with the last context
            const driver::CurrentContext current(api_, (*alive)->get());
            return driver::unpin_host_memory(api_, memory);
        });
        if (unpinned) return true;
    }
    return false;
}

} // namespace gpu_sleep::contents
