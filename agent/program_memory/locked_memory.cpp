// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Steps on the program's memory.

#include "program_memory/locked_memory.hpp"

#include "base/guard.hpp"
#include "program_memory/program_memory.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::agent {

// The mutex is held wherever there is a LockedMemory: with_lock() and try_with_lock() alone make one.
ledger::Ledger& LockedMemory::ledger() const noexcept {
    memory_.mutex_.assert_held();
    return memory_.ledger_;
}

sleep::Engine& LockedMemory::engine() const noexcept {
    memory_.mutex_.assert_held();
    return memory_.running_.load()->engine;
}

const ledger::Backing* LockedMemory::find(driver::DeviceAddress address) const noexcept {
    return ledger().find(address);
}

const ledger::Ledger::Backings& LockedMemory::backings() const noexcept {
    return ledger().backings();
}

bool LockedMemory::is_asleep(driver::DeviceAddress address) const noexcept {
    const auto* backing = ledger().find(address);
    return backing && backing->is_asleep();
}

void LockedMemory::make_stay(driver::DeviceAddress address, const char* reason) noexcept {
    auto& backing = *ledger().find(address);
    if (!backing.stay_reason) backing.stay_reason = reason;
    // No later sleep will ask for what is retained of it.
    if (!backing.is_asleep()) contents().forget(std::exchange(backing.kept, {}).range);
}

void LockedMemory::add_mapping(const OwnMapping& mapping) {
    ledger::Backing backing;
    backing.address = mapping.address;
    backing.bytes = mapping.bytes;
    backing.allocated = mapping.bytes;
    backing.tag = ledger().tag_id(mapping.tag);
    backing.device = mapping.device;
    backing.access = mapping.access;
    backing.mapped = true;
    backing.handle = mapping.handle;
    ledger().add(std::move(backing));
}

driver::PhysicalMemory::Handle LockedMemory::remove_mapping(driver::DeviceAddress address) {
    const auto backing = ledger().remove(address);
    contents().forget(backing.kept.range);
    return backing.handle;
}

void LockedMemory::set_mapping_access(driver::DeviceAddress address, driver::DeviceMask access) noexcept {
    ledger().find(address)->access = access;
}

Result<sleep::SleepPlan> LockedMemory::plan_sleep(const model::SleepRequest& request) {
    return engine().plan_sleep(request);
}

Result<void> LockedMemory::sleep(const model::SleepRequest& request, const sleep::Control& control,
                                 model::Report& report, sleep::Engine::Scope scope,
                                 sleep::Engine::Spill spill) {
    memory_.mutex_.assert_held();
    auto slept = guarded([&] { return engine().sleep(request, control, report, scope, spill); });
    if (slept && report.changed && scope == sleep::Engine::Scope::all) memory_.state_since_ = Clock::now();
    return slept;
}

Result<sleep::Woken> LockedMemory::wake(const model::WakeRequest& request, const sleep::Control& control,
                                        model::Report& report) {
    memory_.mutex_.assert_held();
    auto woken = guarded([&] { return engine().wake(request, control, report); });
    if (report.changed) memory_.state_since_ = Clock::now();
    return woken;
}

Result<std::vector<model::WakeRequest>> LockedMemory::parts_of(const model::WakeRequest& request) const {
    return guarded([&] { return engine().parts_of(request); });
}

Result<void> LockedMemory::check_free_memory(const model::WakeRequest& request) {
    return engine().check_free_memory(request);
}

void LockedMemory::adjust_asleep(const model::SleepRequest& request, model::Report& report) {
    engine().adjust_asleep(request, report);
}

bool LockedMemory::adopt_touch_rule(const model::SleepRequest& request, bool adds_to_sleep, bool is_own) {
    memory_.mutex_.assert_held();
    if (ledger().state() == model::State::awake && !request.deep) return false;
    auto& now = memory_.rule_;
    const auto rule = touch_rule_after(now, memory_.default_rule_, request, adds_to_sleep);
    const auto mode = gate_mode(now, ledger());
    if (is_own) ledger().note_own_sleep(request.tags);
    const bool is_new =
        rule.on_touch != now.on_touch || rule.limit != now.limit || gate_mode(rule, ledger()) != mode;
    now = rule;
    return is_new;
}

std::map<int, Bytes> LockedMemory::worth_preparing() const {
    std::map<int, Bytes> bytes;
    for (const auto device : contents().prepared_devices()) bytes[device] = 0;
    const model::SleepRequest request;
    for (const auto& [address, backing] : ledger().backings()) {
        auto& of_device = bytes[backing.device];
        const auto& tag = ledger().tag(backing.tag);
        const bool would_be_kept = !backing.is_asleep() && !backing.stay_reason &&
                                   sleep::keeps_contents(request, tag.name, tag.policy);
        if (would_be_kept && !contents().find_retained(backing.kept.range)) of_device += backing.bytes;
    }
    for (auto& [device, sum] : bytes) sum -= sum % contents::Contents::k_prepared_piece;
    return bytes;
}

model::State LockedMemory::state() const noexcept {
    return ledger().state();
}

void LockedMemory::describe(model::Report& report) const {
    memory_.mutex_.assert_held();
    report.state = ledger().state();
    report.state_seconds = seconds_since(memory_.state_since_);
    // Awake, the rule of the last sleep is over.
    const auto& rule = report.state == model::State::awake ? memory_.default_rule_ : memory_.rule_;
    report.on_touch = rule.on_touch;
    if (memory_.is_started()) {
        for (const auto store : model::k_stores) model::held_in(report, store) = contents().held(store);
        report.retained_bytes = contents().retained();
        report.host_bytes -= std::min(report.host_bytes, report.retained_bytes);
    }
    // Asking walks all blocks of the range, with the mutex held.
    const bool has_files = report.file_bytes != 0;
    report.tags = ledger().report([this, has_files](contents::Number range) {
        return has_files ? contents().bytes_in(model::Store::file, range) : 0;
    });
}

std::vector<std::filesystem::path> LockedMemory::files_out_of_reach() const {
    return contents().files_left_behind();
}

} // namespace gpu_sleep::agent
