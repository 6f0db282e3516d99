// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of gpu-ps, which --watch keeps on a terminal, and the orders that processes may have there.

#pragma once

#include "control/targets.hpp"
#include "driver/management.hpp"

namespace gpu_sleep::cli {

enum class Order : std::uint8_t {
    pid,
    name,
    gpu,  ///< most GPU memory first
    host, ///< most host memory first
    idle, ///< idle for longest first
};

/// The words of all orders, separated by '|'.
inline constexpr std::string_view k_order_words = "gpu|host|idle|pid|name";

/// The word's value, or nothing for any other word.
[[nodiscard]] std::optional<Order> parse_order(std::string_view word) noexcept;

/// Sorts by `order`, and what is equal there by pid. Who does not answer comes last.
void sort(std::vector<control::Outcome>& outcomes, Order order);

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
