// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The history of sleeps and wakes: what is recorded of each, and what it adds up to.

#pragma once

#include "model/report.hpp"

#include <compare>
#include <functional>

namespace gpu_sleep::model {

/// The file in an agent's directory, and the one before it: the first gives way at this size.
inline constexpr const char* k_history = "history";
inline constexpr const char* k_old_history = "history.old";
inline constexpr Bytes k_max_history = k_mib;

/// A sleep, a wake or a move that is done, in the process's own words.
struct Event {
    double time = 0; ///< its end, in seconds since 1970
    std::uint32_t uid = 0;
    std::uint32_t pid = 0;        ///< in the process's own namespace
    std::uint64_t start_time = 0; ///< see ProcessIdentity
    std::string name{};
    std::string notebook{}; ///< may be empty, as the job
    std::string job{};
    Transition transition = Transition::sleep;
    State state = State::awake; ///< afterwards
    Level level = Level::keep;
    bool deep = false;
    std::string place{};         ///< where the process has contents: "host", "file", "host+file" or "none"
    Bytes bytes = 0;             ///< of GPU memory that were freed or taken again, or of contents that moved
    double asleep_seconds = 0;   ///< of a wake: since the process began to sleep
    std::string asked_by{};      ///< in the asker's words: "touch", "timer", "room for llama"
    std::uint32_t asker_uid = 0; ///< by the kernel's word; that of the process itself where no command asks
    auto operator<=>(const Event&) const = default;
};

/// GPU memory times the time for which it slept between `since` and `until`, in GiB hours. `events` are in
/// the order of their times. A process whose last event is a sleep sleeps still if it `is_there`.
[[nodiscard]] double gib_hours(const std::vector<Event>& events, double since, double until,
                               const std::function<bool(const Event&)>& is_there);

} // namespace gpu_sleep::model
