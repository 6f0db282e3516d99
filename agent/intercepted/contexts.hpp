// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts and streams as the program opens and ends them, and captures in streams.

#pragma once

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {

/// Runs the driver's cuCtxCreate; not without memory to note the context: a sleep waits for its work.
CUresult make_context(const CUcontext* context, const std::function<CUresult()>& make) noexcept;
/// Runs the driver's cuCtxDestroy. What is known of the context is out of the books meanwhile, for another
/// may get its handle at once, and comes back if the context stays; its memory goes with it.
CUresult end_context(CUcontext context, const std::function<CUresult()>& destroy) noexcept;
/// The same for cuCtxDetach: a context that others are attached to stays.
CUresult detach_context(CUcontext context, const std::function<CUresult()>& detach) noexcept;
/// Runs the driver's cuGreenCtxCreate, and its cuCtxFromGreenCtx. A green context holds its device's primary
/// one, and memory is allocated there. Not without memory to note it, as make_context().
CUresult make_green_context(const CUgreenCtx* green, CUdevice device, const std::function<CUresult()>& make,
                            const std::function<CUresult(CUcontext*)>& convert) noexcept;
/// The same as end_context() for cuGreenCtxDestroy, which does not wait for work and may end the primary
/// context.
CUresult end_green_context(CUgreenCtx green, const std::function<CUresult()>& destroy) noexcept;
/// Runs the driver's cuDevicePrimaryCtxRetain: the program holds a primary context once more.
CUresult retain_primary_context(CUdevice device, const std::function<CUresult()>& retain) noexcept;
/// The same as end_context() for cuDevicePrimaryCtxRelease and cuDevicePrimaryCtxReset.
CUresult release_primary_context(CUdevice device, const std::function<CUresult()>& release) noexcept;
CUresult reset_primary_context(CUdevice device, const std::function<CUresult()>& reset) noexcept;

/// Runs the driver's cuStreamBeginCapture, once the capture, which this thread alone may end or any, is in
/// the books: from when it has begun, no free may wait for the device. Not without memory to note it.
CUresult begin_capture(CUstream stream, bool per_thread, bool any_may_end,
                       const std::function<CUresult()>& begin) noexcept;
/// Runs the driver's cuStreamEndCapture, and then frees what has waited for that.
CUresult end_capture(CUstream stream, bool per_thread, const std::function<CUresult()>& end) noexcept;
/// Runs the driver's cuStreamDestroy with the stream out of the books, for another may get its handle at
/// once.
CUresult end_stream(CUstream stream, const std::function<CUresult()>& destroy) noexcept;

/// The stream with the handle that means the same to any call of this thread, and its context: null where
/// there is no such stream, or the agent does not run. `per_thread`: the null stream is the thread's own.
[[nodiscard]] StreamKey key_of(CUstream stream, bool per_thread) noexcept;
/// Whether the stream captures; `unknown` where the driver does not say.
[[nodiscard]] bool is_capturing(CUstream stream, bool unknown) noexcept;
/// The device of a context, which exists.
[[nodiscard]] std::optional<int> device_of(ProgramMemory& memory, CUcontext context);

/// Makes a primary context that is in use current on the calling thread, which is ours and ends soon: what
/// the runtime is asked there would make one on the first device otherwise, for good. Never waits. False
/// where there is none, or one ends just now.
[[nodiscard]] bool enter_primary_context() noexcept;

} // namespace gpu_sleep::agent::intercepted
