// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The options by which gpu-sleep and gpu-reclaim say how deep a sleep is, and where contents go.

#pragma once

#include "cli/options.hpp"
#include "model/model.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// What was typed of stores, for which a request has no place as it is.
struct TypedStores {
    std::vector<std::string> stores;
    std::string directory;
    std::string spill; ///< of gpu-sleep alone
};

[[nodiscard]] usage::Row level_row(model::Level& level);
[[nodiscard]] usage::Row store_row(TypedStores& typed);
[[nodiscard]] usage::Row dir_row(TypedStores& typed);

/// Puts what was typed into the request. Returns what is wrong with it, or nothing.
[[nodiscard]] std::string read_stores(const TypedStores& typed, model::SleepRequest& request);

} // namespace gpu_sleep::cli
