// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How touches are met while something sleeps: what the environment, requests and the program have to say of
// it, and who of them is heard. It decides only; the gate acts.

#pragma once

#include "base/units.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"

#include <optional>

namespace gpu_sleep::agent {

struct TouchRule {
    model::OnTouch on_touch = model::OnTouch::wait;
    std::optional<Milliseconds> limit;   ///< for the waking that a touch asks for
    std::optional<model::GateMode> gate; ///< as an operator wants it: the last request to say so, or gpu-run
    bool is_whole = false;               ///< the last sleep was of all tags

    friend bool operator==(const TouchRule&, const TouchRule&) = default;
};

/// How a process is that a request puts to sleep, and who does that.
struct Before {
    bool is_held = false;     ///< something slept, or it was paused: threads may wait under the present rule
    bool is_paused = false;   ///< it is
    bool is_for_idle = false; ///< it sleeps for being idle
};

/// The rule after `request` was carried out. Fields that it leaves unset keep the value of `now` if threads
/// may wait under that, and else have that of `environment`. Who takes the memory of a process for being
/// idle, or makes room, does not end a pause by that: touches are met as before.
[[nodiscard]] TouchRule touch_rule_after(const TouchRule& now, const TouchRule& environment,
                                         const model::SleepRequest& request, Before before);

/// Which work the gate lets pass while memory of `ledger` sleeps. An operator is heard first. Else other work
/// passes where the program has parted all that sleeps from the rest, by putting it to sleep itself or by
/// declaring its tag separable; unless all was to sleep, and all does.
[[nodiscard]] model::GateMode gate_mode(const TouchRule& rule, const ledger::Ledger& ledger) noexcept;

} // namespace gpu_sleep::agent
