// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts, and waiting for the work in them.

#include "driver/context.hpp"

#include <algorithm>
#include <thread>

namespace gpu_sleep::driver {
namespace {

/// Waits between looks at the device: short at first, because most drains are over at once.
class Backoff {
public:
    void pause() {
        std::this_thread::sleep_for(delay_);
        delay_ = std::min(delay_ * 2, k_longest);
    }

private:
    static constexpr std::chrono::microseconds k_longest{1000};
    std::chrono::microseconds delay_{20};
};

/// An event in the current context, destroyed with its owner.
class ScopedEvent {
public:
    ScopedEvent(const Api& api, CUevent event) noexcept : api_(&api), event_(event) {}
    ScopedEvent(ScopedEvent&& other) noexcept
        : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
    ScopedEvent& operator=(ScopedEvent&&) = delete;
    ~ScopedEvent() {
        if (event_) api_->cuEventDestroy(event_);
    }
    [[nodiscard]] CUevent get() const noexcept { return event_; }

private:
    const Api* api_;
    CUevent event_;
};

/// Whether a stream of the current context that synchronizes with the legacy stream is capturing. Other
/// captures cannot be seen from outside the program's calls.
bool capture_is_visible(const Api& api) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto result = api.cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
    return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
           (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

Result<void> check_time(const std::function<bool()>& keep_going, Clock::time_point deadline, ErrorCode late,
                        std::string_view what) {
    if (!keep_going()) return make_error(ErrorCode::cancelled, "the request was withdrawn");
    if (Clock::now() >= deadline) return make_error(late, "{}", what);
    return {};
}

Result<void> wait_for_captures(const Api& api, const DrainLimits& limits) {
    Backoff backoff;
    while (capture_is_visible(api)) {
        GPU_SLEEP_TRY(check_time(limits.keep_going, limits.captures, ErrorCode::capture_in_progress,
                                 "a CUDA graph is being captured and did not end in time"));
        backoff.pause();
    }
    return {};
}

Result<void> wait_for_work(const Api& api, CUcontext context, const DrainLimits& limits) {
    // Drivers before 12.5 cannot record a context: wait for it without a limit, as every program does.
    if (!api.cuCtxRecordEvent) {
        GPU_SLEEP_DRIVER_TRY(api, cuCtxSynchronize, "cannot wait for the device");
        return {};
    }
    CUevent raw = nullptr;
    GPU_SLEEP_DRIVER_TRY(api, cuEventCreate, "cannot make an event", &raw, CU_EVENT_DISABLE_TIMING);
    const ScopedEvent event(api, raw);
    const auto recorded = api.cuCtxRecordEvent(context, event.get());
    if (recorded == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return make_error(
            ErrorCode::capture_in_progress,
            "a CUDA graph was being captured on a non-blocking stream, and the capture was broken: the "
            "program must hold sleeps back while it captures (gpu_sleep_hold)");
    if (recorded != CUDA_SUCCESS)
        return to_error(api, recorded, "cuCtxRecordEvent", "cannot wait for the device");
    Backoff backoff;
    for (;;) {
        const auto status = api.cuEventQuery(event.get());
        if (status == CUDA_SUCCESS) return {};
        if (status != CUDA_ERROR_NOT_READY)
            return to_error(api, status, "cuEventQuery", "the device's work failed");
        GPU_SLEEP_TRY(
            check_time(limits.keep_going, limits.work, ErrorCode::timed_out,
                       "the device's work did not end in time: a long kernel, or a collective that waits "
                       "for other ranks"));
        backoff.pause();
    }
}

} // namespace

Result<PrimaryContext> PrimaryContext::retain(const Api& api, int device) {
    CUcontext context = nullptr;
    GPU_SLEEP_DRIVER_TRY(api, cuDevicePrimaryCtxRetain, "cannot use the primary context", &context, device);
    return PrimaryContext(api, context, device);
}

PrimaryContext& PrimaryContext::operator=(PrimaryContext&& other) noexcept {
    if (this != &other) {
        reset();
        api_ = other.api_;
        context_ = std::exchange(other.context_, nullptr);
        device_ = other.device_;
    }
    return *this;
}

void PrimaryContext::reset() noexcept {
    if (context_) api_->cuDevicePrimaryCtxRelease(device_);
    context_ = nullptr;
}

Result<std::vector<PrimaryContext>> active_contexts(const Api& api) {
    std::vector<PrimaryContext> contexts;
    int devices = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceGetCount, "cannot count the devices", &devices);
    for (int device = 0; device < devices; ++device) {
        unsigned flags = 0;
        int active = 0;
        GPU_SLEEP_DRIVER_TRY(api, cuDevicePrimaryCtxGetState, "cannot look for contexts", device, &flags,
                             &active);
        if (!active) continue;
        auto context = PrimaryContext::retain(api, device);
        if (!context) return std::move(context).error();
        contexts.push_back(*std::move(context));
    }
    return contexts;
}

bool has_own_context_current(const Api& api) {
    CUcontext current = nullptr;
    if (api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current) return false;
    const auto contexts = active_contexts(api);
    const auto is_current = [=](const PrimaryContext& c) { return c.get() == current; };
    return contexts && std::none_of(contexts->begin(), contexts->end(), is_current);
}

Result<MemoryInfo> memory_info(const Api& api) {
    std::size_t free = 0;
    std::size_t total = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuMemGetInfo, "cannot ask for free memory", &free, &total);
    return MemoryInfo{free, total};
}

Result<void> drain(const Api& api, const std::vector<PrimaryContext>& contexts, const DrainLimits& limits) {
    std::vector<CUcontext> raw;
    raw.reserve(contexts.size());
    for (const auto& context : contexts) raw.push_back(context.get());
    return drain(api, raw, limits);
}

Result<void> drain(const Api& api, const std::vector<CUcontext>& contexts, const DrainLimits& limits) {
    for (auto* const context : contexts) {
        const CurrentContext current(api, context);
        if (current.status() != CUDA_SUCCESS)
            return to_error(api, current.status(), "cuCtxPushCurrent", "cannot enter a context");
        GPU_SLEEP_TRY(wait_for_captures(api, limits));
        GPU_SLEEP_TRY(wait_for_work(api, context, limits));
    }
    return {};
}

} // namespace gpu_sleep::driver
