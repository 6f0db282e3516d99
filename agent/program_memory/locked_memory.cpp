// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Steps on the program's memory, and who is heard about touches.

#include "program_memory/locked_memory.hpp"

#include "base/guard.hpp"

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

bool LockedMemory::set_paused(bool is_paused) noexcept {
    if (std::exchange(is_paused_, is_paused) == is_paused) return false;
    state_since_ = Clock::now();
    return true;
}

model::State LockedMemory::state(const std::vector<std::string>& tags) const {
    const auto state = ledger_.state(tags);
    return state == model::State::awake && is_paused_ ? model::State::paused : state;
}

void LockedMemory::make_stay(driver::DeviceAddress address, const char* reason, bool is_in_common) noexcept {
    auto& backing = *ledger_.find(address);
    const bool stays_for_others = backing.stays_in_common || backing.imported;
    if (!backing.stay_reason || (stays_for_others && !is_in_common)) backing.stay_reason = reason;
    backing.stays_in_common = is_in_common && backing.stay_reason == reason;
    // No later sleep will ask for what is retained of it.
    if (!backing.is_asleep()) contents().forget(std::exchange(backing.kept, {}).range);
}

ledger::Backing LockedMemory::remove_mapping(driver::DeviceAddress address) {
    auto backing = ledger_.remove(address);
    contents().forget(std::exchange(backing.kept, {}).range);
    // It is gone, whatever fails: the next count makes up for this one.
    if (backing.host_backed) ignoring_errors([&] { return engine().count_host_backed(); });
    return backing;
}

Result<void> LockedMemory::sleep(const model::SleepRequest& request, const sleep::Control& control,
                                 model::Report& report, sleep::Transactions::Scope scope,
                                 sleep::Transactions::Spill spill) {
    auto slept = guarded([&] { return engine().sleep(request, control, report, scope, spill); });
    if (slept && report.changed) static_cast<void>(engine().count_host_backed());
    if (slept && report.changed && scope == sleep::Transactions::Scope::all) state_since_ = Clock::now();
    return slept;
}

Result<sleep::Woken> LockedMemory::wake(const model::WakeRequest& request, const sleep::Control& control,
                                        model::Report& report, const sleep::Fetch& fetch,
                                        bool imports_alone) {
    const bool ends_pause = is_paused_ && !request.dry_run;
    auto woken = guarded([&] {
        auto done = engine().wake(request, control, report, fetch, imports_alone);
        if (!done || !ends_pause || report.changed) return done;
        // Where nothing is mapped, this is the point of no return.
        if (auto passed = sleep::pass_point_of_no_return(control); !passed) done = std::move(passed).error();
        return done;
    });
    if (woken && ends_pause) report.changed |= set_paused(false);
    if (report.changed) state_since_ = Clock::now();
    return woken;
}

bool LockedMemory::adopt_touch_rule(const model::SleepRequest& request, Before before, bool is_own) {
    if (state() == model::State::awake && !request.deep) return false;
    auto& now = rule_;
    before.is_paused = is_paused_;
    const auto rule = touch_rule_after(now, default_rule_, request, before);
    const auto mode = gate_mode(now, ledger_);
    if (is_own && request.level != model::Level::pause) ledger_.note_own_sleep(request.tags);
    const bool is_new =
        rule.on_touch != now.on_touch || rule.limit != now.limit || gate_mode(rule, ledger_) != mode;
    now = rule;
    return is_new;
}

std::map<int, Bytes> LockedMemory::worth_preparing() const {
    std::map<int, Bytes> bytes;
    for (const auto device : contents().prepared_devices()) bytes[device] = 0;
    const model::SleepRequest request;
    for (const auto& [address, backing] : ledger_.backings()) {
        auto& of_device = bytes[backing.device];
        const auto& tag = ledger_.tag(backing.tag);
        const bool would_be_kept = !backing.is_asleep() && !backing.stay_reason &&
                                   !ledger_.may_sleep_in_place(backing) &&
                                   sleep::keeps_contents(request, tag.name, tag.policy);
        if (would_be_kept && !contents().find_retained(backing.kept.range)) of_device += backing.bytes;
    }
    for (auto& [device, sum] : bytes) sum -= sum % contents::Contents::k_prepared_piece;
    return bytes;
}

void LockedMemory::describe(model::Report& report) const {
    report.state = state();
    report.state_seconds = seconds_since(state_since_);
    // Awake, the rule of the last sleep is over.
    const auto& rule = report.state == model::State::awake ? default_rule_ : rule_;
    report.on_touch = rule.on_touch;
    report.lock_tags = lock_tags_;
    if (engine_) {
        for (const auto store : model::k_stores) model::held_in(report, store) = contents().held(store);
        report.retained_bytes = contents().retained();
        report.host_bytes -= std::min(report.host_bytes, report.retained_bytes);
        report.directories = contents().directories();
    }
    for (const auto& [address, backing] : ledger_.backings())
        if (backing.is_asleep() && backing.handle != 0)
            (backing.host_backed && backing.holds_contents ? report.host_bytes : report.unreleased_bytes) +=
                backing.bytes;
    // Asking walks all blocks of the range, with the mutex held.
    const bool has_files = report.file_bytes != 0;
    report.tags = ledger_.report([this, has_files](contents::Number range) {
        return has_files ? contents().bytes_in(model::Store::file, range) : 0;
    });
}

} // namespace gpu_sleep::agent
