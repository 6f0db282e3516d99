// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts: finding and keeping them, making one current, and waiting for the work in them, with a limit.

#pragma once

#include "base/units.hpp"
#include "driver/api.hpp"

#include <vector>

namespace gpu_sleep::driver {

struct RetainedContext {
    CUcontext context = nullptr;
    int device = 0;
    friend bool operator==(const RetainedContext&, const RetainedContext&) = default;
};

/// A device's primary context, retained until destroyed: the one that the runtime, and all frameworks, work
/// in. The driver cannot say whether a context that the program made still exists, and using a destroyed one
/// corrupts memory: only the agent uses such contexts, where its Contexts::alive or the shut gate keeps them
/// from ending. Move-only.
class PrimaryContext : Owned<PrimaryContext, RetainedContext> {
public:
    /// Makes the context if it is not active. Errors: out_of_device_memory, driver_failed.
    [[nodiscard]] static Result<PrimaryContext> retain(const Api& api, int device);
    [[nodiscard]] CUcontext get() const noexcept { return Owned::get().context; }
    [[nodiscard]] int device() const noexcept { return Owned::get().device; }

private:
    friend Owned;
    using Owned::Owned;
    static void give_back(const Api& api, const RetainedContext& retained) noexcept {
        api.cuDevicePrimaryCtxRelease(retained.device);
    }
};

/// Whether the device has a primary context in use; false also where the driver does not say.
[[nodiscard]] bool is_primary_active(const Api& api, int device) noexcept;

/// The primary context of `device`, if it is active. Errors: driver_failed.
[[nodiscard]] Result<std::optional<PrimaryContext>> active_context(const Api& api, int device);

/// The primary contexts of all devices that are active now, in the order of their devices. Errors:
/// driver_failed.
[[nodiscard]] Result<std::vector<PrimaryContext>> active_contexts(const Api& api);

/// The first of those, if there is one. Takes no memory unless it fails. Errors: driver_failed.
[[nodiscard]] Result<std::optional<PrimaryContext>> first_active_context(const Api& api);

/// Whether the calling thread's current context is one that the program made itself.
[[nodiscard]] bool has_own_context_current(const Api& api);

/// Makes a context current on this thread until it is destroyed; if it is current
/// already, the usual case, this is one query. Neither copyable nor movable.
class CurrentContext {
public:
    CurrentContext(const Api& api, CUcontext context) noexcept : api_(api) {
        CUcontext current = nullptr;
        if (context && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return;
        status_ = api.cuCtxPushCurrent(context);
        is_pushed_ = status_ == CUDA_SUCCESS;
    }
    ~CurrentContext() {
        if (!is_pushed_) return;
        CUcontext popped = nullptr;
        api_.cuCtxPopCurrent(&popped);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

    /// CUDA_SUCCESS when the context is current.
    [[nodiscard]] CUresult status() const noexcept { return status_; }
    /// Whether it is: in another context a kernel may not reach the memory, and the program would lose its
    /// own. Errors: driver_failed, context_lost.
    [[nodiscard]] Result<void> check() const {
        if (status_ == CUDA_SUCCESS) return {};
        return to_error(api_, status_, "cuCtxPushCurrent", "cannot enter a context");
    }

private:
    const Api& api_;
    CUresult status_ = CUDA_SUCCESS;
    bool is_pushed_ = false;
};

/// A device's memory as the driver reports it.
struct MemoryInfo {
    Bytes free = 0;
    Bytes total = 0;
};

/// The device of the calling thread's current context; nothing where none is.
[[nodiscard]] std::optional<int> current_device(const Api& api);

/// The memory of the device of the calling thread's current context. Errors: driver_failed, context_lost.
/// Source: CUDA Driver API, cuMemGetInfo.
[[nodiscard]] Result<MemoryInfo> memory_info(const Api& api);

/// Devices of the process. Errors: driver_failed.
[[nodiscard]] Result<int> device_count(const Api& api);
/// All memory of the device. Errors: driver_failed.
[[nodiscard]] Result<Bytes> device_memory(const Api& api, int device);
/// Whether `device` can reach the memory of `other`, which is another one. Errors: driver_failed.
[[nodiscard]] Result<bool> can_reach(const Api& api, int device, int other);

/// The device's name for people; empty if the driver does not say. Source: CUDA Driver API, cuDeviceGetName.
[[nodiscard]] std::string device_name(const Api& api, int device);
/// A device attribute; 0 if the driver does not report it. Source: CUDA Driver API, cuDeviceGetAttribute.
[[nodiscard]] int device_attribute(const Api& api, int device, CUdevice_attribute attribute);
/// Whether the process uses the device through MPS. Source: CUDA Driver API, CU_DEVICE_ATTRIBUTE_MPS_ENABLED.
[[nodiscard]] bool is_mps_client(const Api& api, int device);

/// The device's number for good, as nvidia-smi writes it: "GPU-" and a UUID, or "MIG-" and that of a part of
/// a GPU; empty if the driver does not say. Source: CUDA Driver API, cuDeviceGetUuid_v2; NVIDIA
/// Multi-Instance GPU User Guide, device names.
[[nodiscard]] std::string device_uuid(const Api& api, int device);

/// Puts the calling thread's capture mode at relaxed while it lives, so that what this thread does on streams
/// of its own does not break a capture of another thread. Source: CUDA Driver API,
/// cuThreadExchangeStreamCaptureMode.
class RelaxedCaptureMode {
public:
    explicit RelaxedCaptureMode(const Api& api) noexcept : api_(api) {
        api_.cuThreadExchangeStreamCaptureMode(&mode_);
    }
    ~RelaxedCaptureMode() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }
    RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
    RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

private:
    const Api& api_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// How long drain() waits, and whether it should go on.
struct DrainLimits {
    Clock::time_point captures;                             ///< for captures that can be seen to end
    Clock::time_point work;                                 ///< for submitted work to end
    std::function<bool()> keep_going = [] { return true; }; ///< asked between looks
};

/// Waits until all work submitted to `contexts`, which the caller keeps from being destroyed, is done. A
/// capture on a stream that synchronizes with the legacy stream is visible, and drain() waits for it. Any
/// other capture is broken: recording an event in the context breaks it, and the driver does not show it
/// before. Errors: timed_out, capture_in_progress (the message says whether one was broken), cancelled,
/// context_lost.
[[nodiscard]] Result<void> drain(const Api& api, const std::vector<CUcontext>& contexts,
                                 const DrainLimits& limits);

} // namespace gpu_sleep::driver
