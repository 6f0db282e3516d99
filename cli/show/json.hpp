// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Outcomes as JSON. The schema is the same for all commands; man/gpu-ps.1 describes it.

#pragma once

#include "control/need.hpp"

#include <nlohmann/json_fwd.hpp>

namespace gpu_sleep::cli {

/// Rises whenever a member changes its meaning or goes away; members may be added without that.
inline constexpr int k_json_schema = 1;

/// One document: what `program` did to each process, sizes in bytes and times in seconds. Text that is not
/// UTF-8 is made so. `indent` is the number of spaces a level, or -1 for a single line.
[[nodiscard]] std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes,
                                  int indent = 2);

/// The same, with the GPUs of the machine and who has memory there.
[[nodiscard]] std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes,
                                  const std::vector<driver::Gpu>& gpus, int indent);

/// The document for a command that did nothing: the usage was wrong, or it found no process.
[[nodiscard]] std::string to_json(std::string_view program, const Error& error, int indent = 2);

/// The outcomes of those that were to sleep for it, the GPU, and why that was not enough if it was not.
[[nodiscard]] std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes,
                                  const control::GpuRoom& room, const std::optional<Error>& error);

/// The history, with how much it gave back.
[[nodiscard]] std::string to_json(std::string_view program, const std::vector<model::Event>& events,
                                  double gib_hours);

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
