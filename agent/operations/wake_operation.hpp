// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One try of a wake from the request to the answer.

#pragma once

#include "operations/operation.hpp"
#include "operations/room_making.hpp"

namespace gpu_sleep::agent::operations {

/// When a wake was asked for, and whether it has been tried since.
struct Asked {
    Clock::time_point since = Clock::now();
    bool is_tried = false;
};

/// One wake, tried once, on the operations thread. Where it has an order, one part after another. Errors:
/// those of Turnstile::enter(), Gate::close(), Transactions::check_free_memory() and Transactions::wake():
/// all that slept still does; of Woken::left: some of it; those of DeepSleep::find_room(), DeepSleep::end(),
/// GpuLines::wait_for_room() and Joint::wait_ready(); no_process (it is ending); invalid_argument (joint, and
/// in an order; to other GPUs, and not from a deep sleep).
[[nodiscard]] Result<model::Report> wake(const Ground& ground, GpuLines& lines,
                                         const model::WakeRequest& request,
                                         const server::ProgressSink& progress,
                                         const server::DirectiveSource& directives, Asked asked);

} // namespace gpu_sleep::agent::operations
