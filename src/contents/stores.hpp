// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Opening what the stores need for one sleep.

#pragma once

#include "contents/contents.hpp"
#include "model/model.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::contents {

/// Has each keeper open what `request` wants of its store. Adds to `notes` what its user should know of it.
/// Errors: those of Keeper::open().
[[nodiscard]] Result<SaveOptions> open_stores(Contents& contents, const model::SleepRequest& request,
                                              std::vector<std::string>& notes);

} // namespace gpu_sleep::contents
