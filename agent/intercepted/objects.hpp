// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Answers calls, and puts frees off, while a deep sleep keeps the program from the driver. It knows the
// driver's objects that the program has, and which of its work was done when the sleep began.

#pragma once

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {

/// One was made in the calling thread's current context. Thread-safe, as all here is.
void object_made(Object kind, std::uint64_t handle) noexcept;
/// It is about to be destroyed: another may get its handle at once. False: it is not known.
bool object_ends(Object kind, std::uint64_t handle) noexcept;
[[nodiscard]] bool has_any(Object kind) noexcept;
/// The calling thread's current context; null: it is not known, or there is none.
void set_current_context(CUcontext context) noexcept;
/// Asks the driver for it, unless it is known.
void learn_current_context() noexcept;

/// For a deep sleep, once no call passes the gate any more: waits for the work that is left in `contexts` and
/// asks the driver what is done, until forget_what_is_done(). Errors: those of drain(), context_lost among
/// them.
[[nodiscard]] Result<void> note_what_is_done(const driver::Api& api, const std::vector<CUcontext>& contexts,
                                             const driver::DrainLimits& limits);
void forget_what_is_done() noexcept;
/// Once the driver is within reach again, and no call of the program passes yet: makes the synchronisations
/// that were answered in its place, for pools give back what was freed before one.
void synchronize_as_answered(const driver::Api& api) noexcept;

/// While the process sleeps deeply: whether the driver would say that all work is done, of the stream, the
/// event, or the context. False also where that is not known. Each waits until a sleep that begins has come
/// so far, which is when what is left of the work is done.
/// `waits`: the call synchronises, and does not only look.
[[nodiscard]] bool is_stream_done(CUstream stream, bool waits) noexcept;
[[nodiscard]] bool is_event_done(CUevent event, bool waits) noexcept;
[[nodiscard]] bool is_context_done(CUcontext context, bool waits) noexcept;
/// The same of the calling thread's current context: without one nearly every call fails.
[[nodiscard]] bool is_current_context_done(bool waits = false) noexcept;
/// Meanwhile, too: the calling thread's current context. Null: it is not known, or there is none.
[[nodiscard]] CUcontext current_context_while_deep() noexcept;
/// The device of a context. Nothing: the context is not known.
[[nodiscard]] std::optional<CUdevice> device_while_deep(CUcontext context) noexcept;
/// Returns the state of a device's primary context. Empty: it is not known.
[[nodiscard]] std::optional<PrimaryState> primary_state_while_deep(CUdevice device) noexcept;

/// Puts off `free`, which destroys the object, until free_what_was_put_off(), in the order of the calls.
/// False if the process does not sleep deeply, has other contexts than one primary one, in which all is freed
/// then, there is no such object, or no memory to remember it: then the call is made as always. At the end of
/// the process nothing is freed any more. Thread-safe.
[[nodiscard]] bool put_off(Object kind, std::uint64_t handle, std::function<void()> free) noexcept;
/// Frees it, once the driver is within reach again, in a context that lives. On the operations thread,
/// without the memory's mutex.
void free_what_was_put_off(const driver::Api& api) noexcept;

/// For whoever asks meanwhile; none: nobody is answered. Thread-safe.
void set_memory_while_deep(std::optional<driver::MemoryInfo> memory) noexcept;
/// Nothing, unless the process sleeps deeply and has one device alone. Thread-safe.
[[nodiscard]] std::optional<driver::MemoryInfo> memory_while_deep() noexcept;

} // namespace gpu_sleep::agent::intercepted
