// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of gpu-ps, which --watch keeps on a terminal, and the orders that processes may have there.

#pragma once

#include "control/targets.hpp"
#include "driver/management.hpp"

namespace gpu_sleep::cli {

/// The orders that processes may have, separated by '|': most GPU or host memory first, idle for longest
/// first.
inline constexpr const char* k_orders = "gpu|host|idle|pid|name";

/// Sorts by `order`, one of those, and what is equal there by pid. Who does not answer comes last.
void sort(std::vector<control::Outcome>& outcomes, std::string_view order);

/// A line with the sums, one for each of `gpus`, and a table with a line for each process and why it waits,
/// `columns` wide at most: names and reasons are cut. `chosen`: the process with a mark.
[[nodiscard]] std::string render_live(const std::vector<control::Outcome>& outcomes, std::size_t columns,
                                      const std::vector<driver::Gpu>& gpus = {},
                                      std::optional<pid_t> chosen = {});

/// `text`, which is render_live()'s, with as many rows less at the top that the chosen one is among `room`
/// lines.
[[nodiscard]] std::string scrolled(std::string_view text, std::size_t room);

/// The process that is chosen once `key`, 'j' for the next and 'k' for the one before, was pressed.
[[nodiscard]] std::optional<pid_t> choose(const std::vector<control::Outcome>& outcomes,
                                          std::optional<pid_t> chosen, char key);

} // namespace gpu_sleep::cli
