// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graph captures under way.

#pragma once

#include "gate/gate.hpp"
#include "intercepted/answer.hpp"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <span>
#include <tuple>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// A stream in which something is captured. The context and the thread count for per-thread streams only: all
/// others have handles of their own.
using CaptureKey = std::tuple<CUstream, CUcontext, std::uint64_t>;

/// Notes a capture, which the calling thread alone may end or any, before it begins. Returns its number,
/// which is never used twice; 0 if the stream has one already, which goes on.
[[nodiscard]] std::uint64_t note_capture(const CaptureKey& key, CUcontext context, bool any_may_end);
/// The number of the stream's capture; 0 without one.
[[nodiscard]] std::uint64_t capture_in(const CaptureKey& key);
/// The capture is over.
void forget_capture(const CaptureKey& key, std::uint64_t number);
/// The thread is over, and the captures in its own streams with it. Whether there were any.
[[nodiscard]] bool forget_captures_of_thread(std::uint64_t thread);
[[nodiscard]] unsigned captures_open() noexcept;
/// Whether one is open that the calling thread began.
[[nodiscard]] bool has_capture_open() noexcept;
/// The streams in which the calling thread began those that it alone may end: as many as fit. Returns how
/// many.
[[nodiscard]] std::size_t streams_captured_here(std::span<CUstream> streams) noexcept;
/// Returns the sleeping memory for which threads with an open capture wait at the gate: such a capture cannot
/// end before a wake. Empty optional if no such thread waits; an empty list if it is not known for what
/// memory.
[[nodiscard]] std::optional<std::vector<gate::Named::Span>> captures_wait_for();
/// Takes out the captures of the stream; empty where it has none.
[[nodiscard]] PutBack take_captures_of(CUstream stream);
/// Takes out the captures of the context's streams. Where it throws for want of memory nothing has changed.
[[nodiscard]] PutBack take_captures_of(CUcontext context);
/// Held shared from the look for captures until a context's work is noted (PendingWork), which would break
/// one; alone while a capture is noted, before it begins. Nobody waits under it: a capture must not begin any
/// later for what other threads do. Comes after the contexts' mutex.
[[nodiscard]] std::shared_mutex& capture_order() noexcept;

} // namespace gpu_sleep::agent::intercepted
