// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts, and waiting for their work.

#include "driver/context.hpp"

#include "base/threads.hpp"

#include <fmt/format.h>

namespace gpu_sleep::driver {

Result<PrimaryContext> PrimaryContext::retain(const Api& api, int device) {
    CUcontext context = nullptr;
    GPU_SLEEP_DRIVER_TRY(api, cuDevicePrimaryCtxRetain, "cannot use the primary context", &context, device);
    return PrimaryContext(api, {context, device});
}

bool is_primary_active(const Api& api, int device) noexcept {
    unsigned flags = 0;
    int is_active = 0;
    return api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS && is_active != 0;
}

Result<std::optional<PrimaryContext>> active_context(const Api& api, int device) {
    unsigned flags = 0;
    int active = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDevicePrimaryCtxGetState, "cannot look for contexts", device, &flags,
                         &active);
    if (!active) return std::optional<PrimaryContext>();
    auto context = GPU_SLEEP_TRY(PrimaryContext::retain(api, device));
    return std::optional(std::move(context));
}

Result<std::vector<PrimaryContext>> active_contexts(const Api& api) {
    std::vector<PrimaryContext> contexts;
    const auto devices = GPU_SLEEP_TRY(device_count(api));
    for (int device = 0; device < devices; ++device) {
        auto context = GPU_SLEEP_TRY(active_context(api, device));
        if (context.has_value()) contexts.push_back(*std::move(context));
    }
    return contexts;
}

Result<std::optional<PrimaryContext>> first_active_context(const Api& api) {
    const auto devices = GPU_SLEEP_TRY(device_count(api));
    for (int device = 0; device < devices; ++device) {
        auto context = active_context(api, device);
        if (!context || context->has_value()) return context;
    }
    return std::optional<PrimaryContext>();
}

bool has_own_context_current(const Api& api) {
    CUcontext current = nullptr;
    if (api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current) return false;
    const auto contexts = active_contexts(api);
    const auto is_current = [=](const PrimaryContext& c) { return c.get() == current; };
    return contexts && std::none_of(contexts->begin(), contexts->end(), is_current);
}

std::optional<int> current_device(const Api& api) {
    CUdevice device = 0;
    return api.cuCtxGetDevice(&device) == CUDA_SUCCESS ? std::optional(device) : std::nullopt;
}

Result<MemoryInfo> memory_info(const Api& api) {
    std::size_t free = 0;
    std::size_t total = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuMemGetInfo, "cannot query free memory", &free, &total);
    return MemoryInfo{free, total};
}

Result<int> device_count(const Api& api) {
    int count = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceGetCount, "cannot count the devices", &count);
    return count;
}

Result<Bytes> device_memory(const Api& api, int device) {
    std::size_t memory = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceTotalMem, "cannot query the device's memory", &memory, device);
    return Bytes{memory};
}

Result<bool> can_reach(const Api& api, int device, int other) {
    int reachable = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceCanAccessPeer, "cannot query peer access", &reachable, device, other);
    return reachable != 0;
}

std::string device_name(const Api& api, int device) {
    char name[256] = {};
    return api.cuDeviceGetName(name, sizeof(name) - 1, device) == CUDA_SUCCESS ? name : std::string();
}

int device_attribute(const Api& api, int device, CUdevice_attribute attribute) {
    int value = 0;
    return api.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

bool is_mps_client(const Api& api, int device) {
    constexpr auto k_mps_enabled = static_cast<CUdevice_attribute>(133); // which older headers lack
    return device_attribute(api, device, k_mps_enabled) != 0;
}

std::string device_uuid(const Api& api, int device) {
    CUuuid uuid{};
    if (!api.cuDeviceGetUuid_v2 || api.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS) return {};
    const bool is_part = device_name(api, device).find(" MIG ") != std::string::npos;
    std::string text = is_part ? "MIG" : "GPU";
    constexpr std::size_t k_first_group = 4;
    constexpr std::size_t k_last_group = 10;
    for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
        if (i == 0 || (i >= k_first_group && i <= k_last_group && i % 2 == 0)) text += '-';
        text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
    }
    return text;
}

namespace {

/// Waits between looks at the device: short at first, because most drains are over at once.
class Backoff {
public:
    void pause() {
        std::this_thread::sleep_for(delay_);
        delay_ = std::min(delay_ * 2, k_max);
    }

private:
    static constexpr std::chrono::microseconds k_max{1000};
    std::chrono::microseconds delay_{20};
};

/// An event in the current context, destroyed with its owner.
class ScopedEvent : public Owned<ScopedEvent, CUevent> {
public:
    using Owned::Owned;

private:
    friend Owned;
    static void give_back(const Api& api, CUevent event) noexcept { api.cuEventDestroy(event); }
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

/// Looks with `query` until the work is done. Errors: timed_out, cancelled, those of `name`, which failed.
template <class Query>
Result<void> poll(const Api& api, const DrainLimits& limits, const char* name, Query&& query) {
    Backoff backoff;
    for (;;) {
        const CUresult status = query();
        if (status == CUDA_SUCCESS) return {};
        if (status != CUDA_ERROR_NOT_READY) return to_error(api, status, name, "the device's work failed");
        GPU_SLEEP_TRY(
            check_time(limits.keep_going, limits.work, ErrorCode::timed_out,
                       "the device's work did not end in time: a long kernel, or a collective that waits "
                       "for other ranks; --tree or --group puts them to sleep together"));
        backoff.pause();
    }
}

/// For drivers that cannot record a context: a thread waits for all of its work, and is left behind when that
/// takes too long. It ends with the work.
Result<void> wait_on_thread(const Api& api, CUcontext context, const DrainLimits& limits) {
    const auto status = std::make_shared<std::atomic<CUresult>>(CUDA_ERROR_NOT_READY);
    auto thread = GPU_SLEEP_TRY(start_quiet_thread("gpu-sleep-drain", [api, context, status] {
        auto done = api.cuCtxPushCurrent(context);
        if (done == CUDA_SUCCESS) {
            done = api.cuCtxSynchronize();
            CUcontext popped = nullptr;
            api.cuCtxPopCurrent(&popped);
        }
        *status = done;
    }));
    thread.detach();
    return poll(api, limits, "cuCtxSynchronize", [&] { return status->load(); });
}

Result<void> wait_for_work(const Api& api, CUcontext context, const DrainLimits& limits) {
    if (!api.cuCtxRecordEvent) return wait_on_thread(api, context, limits); // a driver before 12.5
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
    return poll(api, limits, "cuEventQuery", [&] { return api.cuEventQuery(event.get()); });
}

} // namespace

Result<void> drain(const Api& api, const std::vector<CUcontext>& contexts, const DrainLimits& limits) {
    for (auto* const context : contexts) {
        const CurrentContext current(api, context);
        GPU_SLEEP_TRY(current.check());
        GPU_SLEEP_TRY(wait_for_captures(api, limits));
        GPU_SLEEP_TRY(wait_for_work(api, context, limits));
    }
    return {};
}

} // namespace gpu_sleep::driver
