// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How far down a process goes the longer it is idle.

#pragma once

#include "base/units.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::control::policy {

[[nodiscard]] inline double seconds_of(Milliseconds time) noexcept {
    return std::chrono::duration<double>(time).count();
}

/// Where the contents of a process that is not used are, each further from the GPU than the one before.
enum class Depth : std::uint8_t {
    awake = 0, ///< on the GPU
    host = 1,  ///< in host memory
    file = 2,
    deep = 3, ///< in files, and nothing is left on the GPU
};

[[nodiscard]] std::string_view to_string(Depth depth) noexcept;

struct Rung {
    Milliseconds idle{0}; ///< from when on
    Depth depth = Depth::host;
    friend bool operator==(const Rung&, const Rung&) = default;
};

/// By time, each rung deeper than the one before. Empty: it stays awake.
using Ladder = std::vector<Rung>;

/// Reads "15m", which is for host memory, or "4h:file". Errors: invalid_argument.
[[nodiscard]] Result<Rung> parse_rung(std::string_view text);

/// Puts the rungs in their order. Errors: invalid_argument (two for one time, or a later one that is no
/// deeper).
[[nodiscard]] Result<Ladder> make_ladder(std::vector<Rung> rungs);

/// The lowest rung that has been reached after so many seconds; nothing before the first.
[[nodiscard]] std::optional<Rung> rung_at(const Ladder& ladder, double idle_seconds) noexcept;

/// At every time as deep as the deeper of the two.
[[nodiscard]] Ladder deeper_of(const Ladder& one, const Ladder& other);

/// Whether it cannot be gone down without a directory.
[[nodiscard]] bool leads_to_files(const Ladder& ladder) noexcept;

/// What is wrong with one that does, where there is no directory.
inline constexpr const char* k_directory_missing =
    "idle moves contents to files, but no directory is set: add, for example, directory = "
    "\"/var/tmp/gpu-sleep-{user}\" below it";

/// As a person would write it: "15m".
[[nodiscard]] std::string to_text(Milliseconds time);
/// "15m host, 4h file", or "never".
[[nodiscard]] std::string to_text(const Ladder& ladder);

} // namespace gpu_sleep::control::policy
