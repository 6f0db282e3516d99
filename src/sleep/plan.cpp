// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a request and the ledger to a plan.

#include "sleep/plan.hpp"

#include <fmt/format.h>

namespace gpu_sleep::sleep {

using ledger::Backing;
using model::Residence;

namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
    return std::ranges::find(names, name) != names.end();
}

template <class T>
void add_once(std::vector<T>& items, const T& item) {
    if (std::ranges::find(items, item) == items.end()) items.push_back(item);
}

Result<void> check_tags(const ledger::Ledger& ledger, const std::vector<std::string>& names) {
    for (const auto& name : names) GPU_SLEEP_TRY(ledger.find_tag(name));
    return {};
}

Result<void> check_tags_of(const auto& request, const ledger::Ledger& ledger) {
    return request.ignore_unknown_tags ? Result<void>() : check_tags(ledger, request.tags);
}

void add_to(SleepPlan& plan, Backing& backing, Action action) {
    switch (action) {
    case Action::leave: break;
    case Action::keep: plan.devices[backing.device].keep.push_back(&backing); break;
    case Action::drop: plan.devices[backing.device].drop.push_back(&backing); break;
    case Action::give_up: plan.give_up.push_back(&backing); break;
    case Action::move: plan.move.push_back(&backing); break;
    case Action::stay: plan.devices[backing.device].stay.push_back(&backing); break;
    case Action::take_out: plan.devices[backing.device].take_out.push_back(&backing); break;
    }
}

bool is_mendable(const Backing& backing, const IsElsewhere& is_elsewhere) {
    return backing.residence() == Residence::damaged && is_elsewhere(backing.kept.range, model::Store::host);
}

/// It comes from outside, and the process has a working directory of its own.
Result<void> check_directory(const model::Placement& placement) {
    const bool is_needed = model::uses_files(placement) || placement.spill;
    const auto& directory = placement.directory;
    if (directory.empty() && is_needed)
        return make_error(ErrorCode::invalid_argument,
                          "contents are to go to files, but no directory is named");
    if (directory.find('\0') != std::string::npos)
        return make_error(ErrorCode::invalid_argument, "the directory's name has a zero byte in it");
    if (!directory.empty() && directory.front() != '/')
        return make_error(ErrorCode::invalid_argument, "the directory '{}' is not an absolute path",
                          directory);
    return {};
}

} // namespace

bool SleepPlan::changes_sleep() const noexcept {
    return !give_up.empty() ||
           std::ranges::any_of(devices, [](const auto& device) { return device.second.puts_to_sleep(); });
}

bool SleepPlan::takes_out() const noexcept {
    return std::ranges::any_of(devices, [](const auto& device) { return !device.second.take_out.empty(); });
}

void SleepPlan::move_only() noexcept {
    for (auto& [ordinal, part] : devices)
        part = {.keep = {}, .drop = {}, .stay = {}, .take_out = std::move(part.take_out)};
    std::erase_if(devices, [](const auto& device) { return device.second.take_out.empty(); });
    give_up.clear();
    without_refill.clear();
    still_kept.clear();
}

Result<void> SleepPlan::leave_gpu(bool may_stay) {
    const auto needs_gpu = [](const Backing* backing) { return backing->holds_contents; };
    bool is_needed = std::ranges::any_of(give_up, needs_gpu);
    for (const auto& [ordinal, part] : devices)
        is_needed |= !part.drop.empty() || (!may_stay && !part.take_out.empty());
    if (is_needed)
        return make_error(ErrorCode::driver_failed,
                          "it sleeps deeply, and the driver holds some of the contents that are asked for: "
                          "wake it first");
    devices.clear();
    return {};
}

Action action_for(Residence residence, const Circumstances& it) noexcept {
    const auto move = it.is_in_place ? Action::take_out : Action::move;
    const auto leave = it.is_elsewhere ? move : Action::leave;
    switch (residence) {
    case Residence::device: return !it.keep ? Action::drop : it.may_stay ? Action::stay : Action::keep;
    case Residence::kept: return it.keep || it.has_preserved ? leave : Action::give_up;
    case Residence::dropped: return leave;
    case Residence::damaged:
        return it.keep || (it.has_preserved && it.is_mendable) ? Action::leave : Action::give_up;
    }
    return Action::leave;
}

WakeAction wake_action_for(Residence residence, bool is_mendable) noexcept {
    switch (residence) {
    case Residence::device: return WakeAction::leave;
    case Residence::kept:
    case Residence::dropped: return WakeAction::restore;
    case Residence::damaged: return is_mendable ? WakeAction::restore : WakeAction::refuse;
    }
    return WakeAction::leave;
}

bool keeps_contents(const model::SleepRequest& request, std::string_view name, model::TagPolicy policy) {
    if (contains(request.keep, name)) return true;
    if (contains(request.discard, name)) return false;
    if (policy.retention == model::Retention::offload) return request.level == model::Level::keep;
    return policy.retention == model::Retention::preserve;
}

bool may_be_lost(model::TagPolicy policy) noexcept {
    return policy.refillable || policy.retention == model::Retention::discard;
}

std::optional<model::Store> store_named_for(const model::Placement& placement, std::string_view name) {
    const auto named =
        std::ranges::find_if(placement.stores, [&](const model::TagStore& each) { return each.tag == name; });
    return named == placement.stores.end() ? std::nullopt : std::optional(named->store);
}

std::optional<model::Store> store_asked_for(const model::Placement& placement, std::string_view name) {
    if (const auto named = store_named_for(placement, name)) return named;
    return placement.store_is_named ? std::optional(placement.store) : std::nullopt;
}

model::Store store_for(const model::Placement& placement, std::string_view name) {
    return store_named_for(placement, name).value_or(placement.store);
}

std::vector<Run> make_runs(const std::vector<Backing*>& backings) {
    std::vector<Run> runs;
    for (auto* backing : backings) {
        const auto* last = runs.empty() ? nullptr : runs.back().backings.back();
        const bool joins = last && last->end() == backing->address && last->tag == backing->tag &&
                           last->access == backing->access;
        if (!joins) runs.emplace_back();
        runs.back().backings.push_back(backing);
    }
    return runs;
}

Result<SleepPlan> plan_sleep(ledger::Ledger& ledger, const model::SleepRequest& request,
                             const IsElsewhere& is_elsewhere) {
    GPU_SLEEP_TRY(check_directory(request));
    GPU_SLEEP_TRY(check_tags_of(request, ledger));
    GPU_SLEEP_TRY(check_tags(ledger, request.keep));
    GPU_SLEEP_TRY(check_tags(ledger, request.discard));
    for (const auto& [name, store] : request.stores)
        if (name != model::k_default_tag)
            GPU_SLEEP_TRY(check_tags(ledger, {name})); // which need not be in use
    for (const auto& name : request.keep)
        if (contains(request.discard, name))
            return make_error(ErrorCode::invalid_argument, "tag '{}' is to be both kept and discarded", name);

    SleepPlan plan;
    if (request.level == model::Level::pause) return plan;
    for (auto& [address, backing] : ledger.backings()) {
        if (backing.stay_reason) continue;
        const auto& tag = ledger.tag(backing.tag);
        const bool is_in_place = backing.holds_contents;
        const bool is_asked_for = backing.imported || model::means_tag(request.tags, tag.name);
        // A deep sleep takes it all out: the driver may not bring such memory back.
        if (!is_asked_for && !(request.deep && is_in_place)) continue;
        // Of what is imported the owner decides, which may end before this process wakes.
        const bool keep = !is_asked_for || backing.imported || keeps_contents(request, tag.name, tag.policy);
        const bool is_damaged = backing.residence() == Residence::damaged;
        const auto asked = store_asked_for(request, tag.name);
        const bool has_kept = backing.is_asleep() && backing.kept.range != 0;
        const bool is_to_move = is_in_place ? request.deep || asked == model::Store::file
                                            : asked && has_kept && is_elsewhere(backing.kept.range, *asked);
        const bool may_stay = ledger.may_sleep_in_place(backing) && !request.deep &&
                              store_for(request, tag.name) == model::Store::host;
        const auto action =
            action_for(backing.residence(), {.keep = keep,
                                             .has_preserved = !backing.preserved.empty(),
                                             .is_mendable = is_mendable(backing, is_elsewhere),
                                             .is_elsewhere = is_to_move,
                                             .may_stay = may_stay,
                                             .is_in_place = is_in_place});
        const bool has_all =
            backing.residence() == Residence::kept || (is_damaged && backing.kept.bytes == backing.bytes);
        const bool moves = action == Action::move || action == Action::take_out;
        const bool stays_asleep = action == Action::leave || moves;
        if (stays_asleep && !keep && has_all) add_once(plan.still_kept, tag.name);
        if (action == Action::leave) continue;
        add_to(plan, backing, action);
        if (!plan.targets.contains(backing.tag))
            plan.targets.emplace(backing.tag, SleepPlan::Target{tag.name, store_for(request, tag.name)});
        if (moves || backing.imported) continue;
        add_once(plan.tags, tag.name);
        if (action != Action::give_up) plan.awake_tags.insert(tag.name);
        if (action == Action::keep || action == Action::stay ||
            (action == Action::drop && backing.is_wholly_preserved()))
            continue;
        add_once(plan.dropped_tags, tag.name);
        if (!may_be_lost(tag.policy)) add_once(plan.without_refill, tag.name);
    }
    if (request.require_refill && !plan.without_refill.empty())
        return make_error(ErrorCode::no_refill,
                          "tag '{}' would be dropped, and the program has not declared that it can refill it",
                          plan.without_refill.front());
    return plan;
}

std::vector<Drafted> draft(const SleepPlan& plan, contents::Save& save, std::optional<model::Store> store) {
    std::vector<Drafted> drafted;
    const auto add = [&](Backing& backing, std::vector<Span> spans) {
        const auto& target = plan.targets.at(backing.tag);
        const auto bytes = sum_of(spans, &Span::bytes);
        const auto number = save.add({backing.device, target.tag}, store.value_or(target.store),
                                     backing.address, std::move(spans), backing.kept.range);
        drafted.push_back({&backing, {number, bytes}});
    };
    for (const auto& [ordinal, part] : plan.devices) {
        for (auto* backing : part.keep) add(*backing, {{0, backing->bytes}});
        for (auto* backing : part.take_out) add(*backing, {{0, backing->bytes}});
        for (auto* backing : part.drop)
            if (!backing->preserved.empty()) add(*backing, backing->preserved);
    }
    return drafted;
}

void note_in_place(const SleepPlan& plan, model::Report& report) {
    Bytes bytes = 0;
    for (const auto& [ordinal, part] : plan.devices) bytes += sum_of(part.stay, &Backing::bytes);
    if (bytes == 0) return;
    ignoring_errors([&] {
        report.notes.push_back(fmt::format("{} stays in the host memory that the program runs from, "
                                           "without a copy",
                                           format_bytes(bytes)));
    });
}

Bytes WakePlan::needs(int device) const {
    const auto part = devices.find(device);
    if (part == devices.end()) return 0;
    return sum_of(part->second, [this](const Backing* backing) {
        return backing->handle == 0 && !to_host.contains(backing) ? backing->bytes : 0;
    });
}

Bytes WakePlan::needs_of_host() const noexcept {
    return sum_of(to_host, [](const Backing* backing) { return backing->handle == 0 ? backing->bytes : 0; });
}

Result<WakePlan> plan_wake(ledger::Ledger& ledger, const model::WakeRequest& request,
                           const IsElsewhere& is_elsewhere) {
    GPU_SLEEP_TRY(check_tags_of(request, ledger));
    WakePlan plan;
    std::vector<Backing*> asleep;
    for (auto& [address, backing] : ledger.backings()) {
        const auto& tag = ledger.tag(backing.tag);
        if (!backing.imported && !model::means_tag(request.tags, tag.name)) continue;
        const auto action = wake_action_for(backing.residence(), is_mendable(backing, is_elsewhere));
        if (action == WakeAction::restore) asleep.push_back(&backing);
        if (action == WakeAction::refuse)
            plan.spoiled.try_emplace(
                backing.tag, make_error(ErrorCode::damaged,
                                        "the kept contents of tag '{}' are damaged (range {:#x} of {})",
                                        tag.name, backing.address, format_bytes(backing.bytes)));
    }
    for (auto* backing : asleep) {
        if (backing->imported) {
            plan.imports.push_back(backing);
            continue;
        }
        if (plan.spoiled.contains(backing->tag)) continue;
        plan.devices[backing->device].push_back(backing);
        // All but what is placed there from the start comes back with it.
        const bool stays_there =
            request.live_bytes != model::k_all_bytes || ledger.tag(backing->tag).live_bytes != 0;
        if (backing->was_host_backed && stays_there) plan.to_host.insert(backing);
        add_once(plan.tags, backing->tag);
        if (backing->has_lost_contents()) add_once(plan.dropped_tags, backing->tag);
    }
    return plan;
}

} // namespace gpu_sleep::sleep
