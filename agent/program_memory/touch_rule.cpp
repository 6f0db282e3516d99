// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who is heard.

#include "program_memory/touch_rule.hpp"

namespace gpu_sleep::agent {

using model::GateMode;

TouchRule touch_rule_after(const TouchRule& now, const TouchRule& environment,
                           const model::SleepRequest& request, Before before) {
    auto rule = before.is_held ? now : environment;
    const bool is_unattended = before.is_for_idle || request.min_awake;
    if (request.on_touch && !(before.is_held && before.is_paused && is_unattended))
        rule.on_touch = *request.on_touch;
    if (request.touch_limit) rule.limit = request.touch_limit;
    if (request.gate) rule.gate = request.gate;
    if (request.level != model::Level::pause) rule.is_whole = request.tags.empty();
    return rule;
}

GateMode gate_mode(const TouchRule& rule, const ledger::Ledger& ledger) noexcept {
    if (rule.gate) return *rule.gate;
    bool is_some_awake = false;
    for (const auto& [address, backing] : ledger.backings()) {
        if (!backing.is_asleep())
            is_some_awake |= !backing.stay_reason;
        else if (!backing.slept_by_program && !ledger.tag(backing.tag).is_separable)
            return GateMode::shut;
    }
    return is_some_awake || !rule.is_whole ? GateMode::checked : GateMode::shut;
}

} // namespace gpu_sleep::agent
