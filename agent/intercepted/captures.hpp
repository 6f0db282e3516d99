// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graph captures under way.

#pragma once

#include "gate/gate.hpp"
#include "intercepted/taken.hpp"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// Before the driver begins a capture, which this thread alone may end or any; returns its number, for
/// capture_failed() if it did not.
[[nodiscard]] std::uint64_t capture_begins(CUstream stream, bool per_thread, bool any_may_end) noexcept;
void capture_failed(CUstream stream, bool per_thread, std::uint64_t number) noexcept;
/// The number of the stream's capture before the driver ends it, for capture_ended(); 0 without one.
[[nodiscard]] std::uint64_t capture_ends(CUstream stream, bool per_thread) noexcept;
void capture_ended(CUstream stream, bool per_thread, std::uint64_t number, CUresult status) noexcept;
[[nodiscard]] unsigned captures_open() noexcept;
/// Whether one is open that the calling thread began.
[[nodiscard]] bool has_capture_open() noexcept;
/// The streams in which the calling thread began those that it alone may end: as many as fit. Returns how
/// many.
[[nodiscard]] std::size_t streams_captured_here(std::span<CUstream> streams) noexcept;
/// What sleeps of that for which threads wait at the gate that have a capture open, which cannot end before.
/// Nothing if none waits; empty if it is not known what for.
[[nodiscard]] std::optional<std::vector<gate::Named::Span>> captures_wait_for();
/// Takes out the captures of the stream, or of the context's streams.
[[nodiscard]] Taken take_captures_of(CUstream stream);
[[nodiscard]] Taken take_captures_of(CUcontext context);
/// Held shared from the look for captures until a context's work is noted (PendingWork), which would break
/// one; alone while a capture is noted, before it begins. Nobody waits under it: a capture must not begin any
/// later for what other threads do. Comes after the contexts' mutex.
[[nodiscard]] std::shared_mutex& capture_order() noexcept;

} // namespace gpu_sleep::agent::intercepted
