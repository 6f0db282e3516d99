// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What streams and graphs are made of: a piece of work, and giving it to a stream.

#pragma once

#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/entry.hpp"
#include "support/simulated_driver/work_item.hpp"

#include <atomic>
#include <memory>

namespace gpu_sleep::sim {

/// What became of submitted work.
struct Submitted {
    Ticket ticket;
    bool captured = false; ///< recorded in a graph: nothing runs now
};

/// Gives `work` to `stream`: queues it behind what must come first, or records it if the stream captures.
/// Work in the legacy stream while a blocking stream of its context captures breaks that capture. Errors:
/// STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED, OUT_OF_MEMORY (no thread can be had); those of
/// Work::prepare().
CUresult submit(Call& call, Stream& stream, std::shared_ptr<const Work> work, Submitted* submitted = nullptr);

/// Queues `task` in `stream`, which does not capture: after all earlier work of it, `after`, and what the
/// rules of the legacy default stream say.
Ticket enqueue(Stream& stream, std::vector<Ticket> after, Stream::Task task);

/// The work of `call` runs in these circumstances if it is submitted now.
[[nodiscard]] Execution execution_now(const Call& call, Stream& stream);

} // namespace gpu_sleep::sim
