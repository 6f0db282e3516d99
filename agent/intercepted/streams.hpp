// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams, as the program captures in them and destroys them.

#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace gpu_sleep::agent::intercepted {

/// Before the driver begins a capture, which this thread alone may end or any; returns its number, for
/// capture_failed() if it did not. Nothing without memory: then it must not begin, for others would break it.
[[nodiscard]] std::optional<std::uint64_t> capture_begins(CUstream stream, bool per_thread,
                                                          bool any_may_end) noexcept;
void capture_failed(CUstream stream, bool per_thread, std::uint64_t number) noexcept;
/// The number of the stream's capture before the driver ends it, for capture_ended(); 0 without one.
[[nodiscard]] std::uint64_t capture_ends(CUstream stream, bool per_thread) noexcept;
void capture_ended(CUstream stream, bool per_thread, std::uint64_t number, CUresult status) noexcept;
/// Runs the driver's cuStreamDestroy with the stream out of the books, for another may get its handle at
/// once.
CUresult end_stream(CUstream stream, const std::function<CUresult()>& destroy) noexcept;

} // namespace gpu_sleep::agent::intercepted
