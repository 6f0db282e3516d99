// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running a callback by its name, because somebody asks for it.

#pragma once

#include "base/error.hpp"
#include "model/model.hpp"
#include "operations/parts.hpp"
#include "server/line.hpp"

namespace gpu_sleep::agent::operations {

/// Runs the callback, while nothing sleeps or wakes, and reports its reply; in a dry run reports only whether
/// there is one. Called on the operations thread. Errors: those of Turnstile::enter(), DeepSleep::look() and
/// Callbacks::run_named(); refused (it sleeps deeply), no_process (it is ending).
[[nodiscard]] Result<model::Report> call(Parts& parts, const model::CallRequest& request,
                                         const server::ProgressSink& progress);

} // namespace gpu_sleep::agent::operations
