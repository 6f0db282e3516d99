// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether a process is idle as a sleep asks for, and stays so.

#pragma once

#include "model/model.hpp"
#include "operations/parts.hpp"

#include <optional>
#include <string>

namespace gpu_sleep::agent::operations {

/// What a sleep is for that is only for what is idle. Used on the operations thread. Parts and request
/// outlive it.
class Idleness {
public:
    Idleness(Parts& parts, const model::IdleSleepRequest& request) : parts_(parts), request_(request) {}

    /// Looks whether the process is idle as asked. Returns why it is not to sleep now; empty: it is.
    [[nodiscard]] std::string find();
    /// Whether it sleeps already, and has been idle or asleep for as long as asked: nothing but moves is
    /// done, and whoever wakes meanwhile stays awake.
    [[nodiscard]] bool is_for_moves() const noexcept { return is_for_moves_; }
    /// Whether the program has not worked since, and has no sleeps wait. Always so where only moves are done,
    /// for what moves sleeps on.
    [[nodiscard]] bool lasts(model::Progress::Phase phase);
    /// Whether that was ever found to be over.
    [[nodiscard]] bool is_over() const noexcept { return is_over_; }

private:
    [[nodiscard]] std::string find_unused();
    /// Why `seconds` are too few, or nothing.
    [[nodiscard]] std::string why_too_short(double seconds) const;

    Parts& parts_;
    const model::IdleSleepRequest& request_;
    std::optional<IdleWatch::Idle> idle_; ///< as it was when it was found
    bool is_for_moves_ = false;
    bool is_over_ = false;
};

} // namespace gpu_sleep::agent::operations
