// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver's entry points, found in libcuda at run time, and their errors as ours.

#pragma once

#include "base/error.hpp"

#include <cuda.h>

// An optional function that cuda.h lacks before CUDA 12.5, declared as there.
extern "C" CUresult CUDAAPI cuCtxRecordEvent(CUcontext context, CUevent event);

namespace gpu_sleep::driver {

/// The driver functions that the product calls. Names are cuda.h's, so the versioned symbol behind each
/// (cuMemAlloc -> cuMemAlloc_v2) follows the header that we were built with.
#define GPU_SLEEP_DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit)                                                                                                \
    X(cuGetErrorName)                                                                                        \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDeviceTotalMem)                                                                                      \
    X(cuDeviceCanAccessPeer)                                                                                 \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease)                                                                             \
    X(cuDevicePrimaryCtxGetState)                                                                            \
    X(cuCtxPushCurrent)                                                                                      \
    X(cuCtxPopCurrent)                                                                                       \
    X(cuCtxGetCurrent)                                                                                       \
    X(cuCtxGetDevice)                                                                                        \
    X(cuCtxGetFlags)                                                                                         \
    X(cuCtxSynchronize)                                                                                      \
    X(cuThreadExchangeStreamCaptureMode)                                                                     \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamDestroy)                                                                                       \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuStreamIsCapturing)                                                                                   \
    X(cuEventCreate)                                                                                         \
    X(cuEventDestroy)                                                                                        \
    X(cuEventRecord)                                                                                         \
    X(cuEventQuery)                                                                                          \
    X(cuEventSynchronize)                                                                                    \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleUnload)                                                                                        \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)                                                                                        \
    X(cuMemGetInfo)                                                                                          \
    X(cuEventElapsedTime)                                                                                    \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuMemGetAllocationGranularity)                                                                         \
    X(cuMemAddressReserve)                                                                                   \
    X(cuMemAddressFree)                                                                                      \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemExportToShareableHandle)                                                                          \
    X(cuMemImportFromShareableHandle)                                                                        \
    X(cuMemGetAllocationPropertiesFromHandle)                                                                \
    X(cuMemMap)                                                                                              \
    X(cuMemUnmap)                                                                                            \
    X(cuMemSetAccess)                                                                                        \
    X(cuMemGetAccess)                                                                                        \
    X(cuMemHostAlloc)                                                                                        \
    X(cuMemFreeHost)                                                                                         \
    X(cuMemHostRegister)                                                                                     \
    X(cuMemHostUnregister)                                                                                   \
    X(cuMemcpyDtoHAsync)                                                                                     \
    X(cuMemcpyHtoDAsync)                                                                                     \
    X(cuMemcpyDtoDAsync)                                                                                     \
    X(cuMemsetD8Async)

/// Functions that older drivers lack; null there.
#define GPU_SLEEP_OPTIONAL_DRIVER_FUNCTIONS(X)                                                               \
    X(cuCtxRecordEvent)                                                                                      \
    X(cuCtxGetId)                                                                                            \
    X(cuDeviceGetDefaultMemPool)                                                                             \
    X(cuDeviceGetMemPool)                                                                                    \
    X(cuDeviceGetUuid_v2)                                                                                    \
    X(cuDriverGetVersion)                                                                                    \
    X(cuMemPoolCreate)                                                                                       \
    X(cuMemPoolGetAttribute)                                                                                 \
    X(cuStreamGetCtx)                                                                                        \
    X(cuDeviceGetGraphMemAttribute)

/// The table of entry points. Immutable after load(); thread-safe.
struct Api {
#define GPU_SLEEP_MEMBER(name) decltype(&::name) name = nullptr;
    GPU_SLEEP_DRIVER_FUNCTIONS(GPU_SLEEP_MEMBER)
    GPU_SLEEP_OPTIONAL_DRIVER_FUNCTIONS(GPU_SLEEP_MEMBER)
#undef GPU_SLEEP_MEMBER

    /// Opens libcuda.so.1 (never closed again) and finds every function. Calls none of them.
    /// Errors: no_driver (no library, or one that lacks a function: named).
    [[nodiscard]] static Result<Api> load();
};

/// cuInit: CUDA can be used from here on. Errors: driver_failed.
[[nodiscard]] Result<void> initialise(const Api& api);

/// Whether the status says that a context is lost, and its work with it.
[[nodiscard]] bool ends_context(CUresult status) noexcept;

/// The error behind a driver status that is not CUDA_SUCCESS. `call` is the function's name; `what` says what
/// was being done, and to which range. Statuses that end a context become context_lost.
[[nodiscard]] Error to_error(const Api& api, CUresult status, std::string_view call, std::string_view what);

/// Owns a thing of the driver's, which Kind::give_back(api, thing) gives back when this is destroyed; a
/// Thing{} is none. Move-only; empty when moved from.
template <class Kind, class Thing>
class Owned {
public:
    Owned(const Api& api, Thing thing) noexcept : api_(&api), thing_(thing) {}
    Owned(Owned&& other) noexcept : api_(other.api_), thing_(other.release()) {}
    Owned& operator=(Owned other) noexcept {
        std::swap(api_, other.api_);
        std::swap(thing_, other.thing_);
        return *this;
    }
    ~Owned() {
        if (thing_ != Thing{}) Kind::give_back(*api_, thing_);
    }

    [[nodiscard]] const Thing& get() const noexcept { return thing_; }
    /// Gives it away; the caller gives it back.
    [[nodiscard]] Thing release() noexcept { return std::exchange(thing_, Thing{}); }

protected:
    [[nodiscard]] const Api& api() const noexcept { return *api_; }

private:
    const Api* api_;
    Thing thing_;
};

} // namespace gpu_sleep::driver

/// Calls `api.function(...)` and leaves the enclosing function with an Error when it fails.
#define GPU_SLEEP_DRIVER_TRY(api, function, what, ...)                                                       \
    do {                                                                                                     \
        if (const CUresult gpu_sleep_status = (api).function(__VA_ARGS__); gpu_sleep_status != CUDA_SUCCESS) \
            return ::gpu_sleep::driver::to_error(api, gpu_sleep_status, #function, what);                    \
    } while (false)
