// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the JSON of all commands has in common, for the files that compose it.

#pragma once

#include "base/error.hpp"
#include "control/outcome.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

using OrderedJson = nlohmann::ordered_json;

/// `outcome`: see advice_from().
[[nodiscard]] OrderedJson error_value(std::string_view program, const Error& error,
                                      const control::Outcome* outcome = nullptr);

/// The members that come first, and the empty list of what `program` is about: "snapshots" for gpu-snapshot,
/// "processes" for all others.
[[nodiscard]] OrderedJson document(std::string_view program, int exit_status);

/// The same with what became of each process.
[[nodiscard]] OrderedJson document_of(std::string_view program, const std::vector<control::Outcome>& outcomes,
                                      int exit_status);

/// Text that is not UTF-8 is made so, and what a terminal would not show is escaped.
[[nodiscard]] std::string written(const OrderedJson& value, int indent = 2);

} // namespace gpu_sleep::cli
