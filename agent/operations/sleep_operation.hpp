// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep from the request to the answer.

#pragma once

#include "operations/operation.hpp"
#include "torch/torch_trim.hpp"

namespace gpu_sleep::agent::operations {

/// The services that a sleep uses. One for the process.
struct SleepGround {
    const Ground& every;
    Inhibitors& inhibitors;
    torch::TorchTrim& torch_trim; ///< used by one operation at a time
    Preparation& preparation;
};

/// One sleep, on the operations thread. Errors: those of Turnstile::enter(), Callbacks::run_before_sleep(),
/// Quiesce, Transactions::sleep() and Joint::wait_ready(): all is awake that was, but for what could not be
/// mapped again; inhibited, unseen_library, io_failed, no_process (it is ending), cancelled.
///
/// Where it is `only_if_idle`, of which `request` is a part, a process that is not idle as asked, or works
/// again before the point of no return, is reported unchanged, with a note that says why.
[[nodiscard]] Result<model::Report> sleep(const SleepGround& ground, const model::SleepRequest& request,
                                          const model::IdleSleepRequest* only_if_idle,
                                          const server::ProgressSink& progress,
                                          const server::DirectiveSource& directives, server::Asker asker);

} // namespace gpu_sleep::agent::operations
