// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving back what is retained, because somebody asks for it.

#pragma once

#include "base/error.hpp"
#include "model/model.hpp"
#include "operations/parts.hpp"
#include "server/line.hpp"

namespace gpu_sleep::agent::operations {

/// Gives back all host memory that is retained, at once; in a dry run says how much that is. Called on the
/// operations thread. Errors: those of Turnstile::enter() and DeepSleep::look(); no_process (it is ending).
[[nodiscard]] Result<model::Report> release(Parts& parts, const model::ReleaseRequest& request,
                                            const server::ProgressSink& progress);

} // namespace gpu_sleep::agent::operations
