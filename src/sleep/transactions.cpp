// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a request to a transaction and its report.

#include "sleep/transactions.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "contents/stored.hpp"
#include "sleep/sleep_transaction.hpp"
#include "sleep/wake_transaction.hpp"

#include <fmt/ranges.h>

namespace gpu_sleep::sleep {

using ledger::Backing;

namespace {

void describe_plan(const SleepPlan& plan, model::Report& report) {
    for (const auto& [ordinal, part] : plan.devices) {
        auto& device = device_in(report, ordinal);
        for (const auto* backing : part.keep) {
            device.released += frees_gpu(*backing) ? backing->bytes : 0;
            device.kept += backing->bytes;
        }
        for (const auto* backing : part.drop) {
            device.released += frees_gpu(*backing) ? backing->bytes : 0;
            const auto kept = sum_of(backing->preserved, &Span::bytes);
            device.kept += kept;
            device.dropped += backing->bytes - kept;
        }
        device.kept += sum_of(part.stay, &Backing::bytes);
    }
}

/// Contents that were given up without touching the device belong in the report too.
void add_given_up(const SleepPlan& plan, model::Report& report) {
    for (const auto* backing : plan.give_up) device_in(report, backing->device).dropped += backing->bytes;
}

/// Puts what `plan` moves into `move`.
void draft_moves(const SleepPlan& plan, contents::Relocation& move) {
    for (const auto* backing : plan.move) {
        const auto& target = plan.targets.at(backing->tag);
        move.add({backing->device, target.tag}, target.store, backing->address, backing->kept.range);
    }
}

/// What was moved on each device, or would be.
void add_moved(const SleepPlan& plan, const contents::Relocation& move, model::Report& report) {
    for (const auto* backing : plan.move) static_cast<void>(device_in(report, backing->device));
    for (auto& device : report.devices) device.relocated += move.bytes(device.device);
}

/// What may go to host memory when the rest goes elsewhere, which takes some, too: a ring, and twice as much
/// in buffers.
Bytes room_beside_others(const contents::SaveOptions& save, const contents::HostUse& options) {
    // Files in host memory take of the same, and are smaller.
    if (save.store->is_in_memory) return 0;
    const auto space = options.budget->room().bytes;
    return space - std::min(3 * options.staging, space / 4);
}

} // namespace

void describe_plan(const WakePlan& plan, model::Report& report) {
    for (const auto& [ordinal, backings] : plan.devices) {
        auto& device = device_in(report, ordinal);
        device.released = plan.needs(ordinal);
        for (const auto* backing : backings) {
            device.kept += backing->bytes - backing->lost();
            device.dropped += backing->lost();
        }
    }
}

Result<void> Transactions::sleep(const model::SleepRequest& request, const Control& control,
                                 model::Report& report, Scope scope, Spill spill) {
    auto plan = GPU_SLEEP_TRY(plan_sleep(request));
    if (scope == Scope::deep)
        GPU_SLEEP_TRY(plan.leave_gpu(request.deep));
    else if (scope != Scope::all)
        plan.move_only();
    if (scope == Scope::copies) plan.devices.clear();
    report.dropped_without_refill = plan.without_refill;
    if (request.dry_run) {
        GPU_SLEEP_TRY(rehearse(request, plan, report));
        // Who only moves contents takes no GPU memory, and may be out of the driver's reach.
        return scope != Scope::all
                   ? Result<void>()
                   : add_memory([](Bytes free, Bytes released) { return free + released; }, report);
    }
    if (plan.is_empty()) return {};
    const auto open = [&] { return contents_.open(request, spill, report.notes); };
    // A directory's leftovers are removed.
    const bool takes_time = model::uses_files(request) || !spill.empty();
    auto options = GPU_SLEEP_TRY(takes_time ? telling_of_call(control.progress, open) : open());
    if (!spill.empty()) options.room = room_beside_others(options, contents_.options());
    const auto protect = [](contents::Contents* contents) { contents->protect(); };
    const std::unique_ptr<contents::Contents, decltype(protect)> copying(&contents_, protect);
    // Until it is admitted nothing has moved. No memory of the device is touched for it, and nobody wakes.
    contents::Relocation move(contents_, options);
    draft_moves(plan, move);
    SleepTransaction transaction(api_, contents_, plan, std::move(options), request.spill && spill.empty());
    const auto start = Clock::now();
    {
        const log::Step step("copy contents");
        GPU_SLEEP_TRY(transaction.prepare(control));
        GPU_SLEEP_TRY(move.carry(control));
    }
    report.times.transfer = seconds_since(start);
    report.devices.reserve(report.devices.size() + plan.devices.size() + plan.give_up.size() +
                           plan.move.size());
    const bool others_go = GPU_SLEEP_TRY(pass_point_of_no_return(control));
    const auto prepared = Clock::now();
    const log::Step step("release GPU memory");
    GPU_SLEEP_TRY(telling_of_call(
        control.progress, [&] { return transaction.commit(others_go); }, model::Progress::Phase::release));
    move.admit();
    report.times.release = seconds_since(prepared);
    report.changed = true;
    // It sleeps: no shortage makes a failure of that.
    transaction.describe(report);
    add_moved(plan, move, report);
    add_given_up(plan, report);
    return {};
}

Result<void> Transactions::rehearse(const model::SleepRequest& request, const SleepPlan& plan,
                                    model::Report& report) {
    describe_plan(plan, report);
    add_given_up(plan, report);
    contents::Save save(contents_, {}, plan.devices.size());
    static_cast<void>(draft(plan, save));
    save.lay_out();
    for (auto& device : report.devices) {
        const auto figures = save.figures(device.device);
        device.stored = figures.stored;
        device.copied = figures.copied;
    }
    for (const auto& [ordinal, part] : plan.devices) // how much of it is zero is not known
        for (const auto* backing : part.take_out) add_taken_out(report, ordinal, backing->bytes);
    note_in_place(plan, report);
    contents::Relocation move(contents_, {});
    draft_moves(plan, move);
    add_moved(plan, move, report);
    for (const auto store : model::k_stores) {
        const auto saved = save.needs(store);
        const auto moved = move.needs(store);
        if (!saved || !moved) return saved ? moved.error() : saved.error();
        contents_.note_needs(store, *saved + *moved, request, false, report);
    }
    const auto in_first = GPU_SLEEP_TRY(save.needs(model::k_stores.front()));
    if (!request.spill || in_first == 0) return {};
    for (const auto store : model::k_other_stores) {
        // At most all of it: how much is zero is not known.
        contents::Save spilled(contents_, {}, plan.devices.size());
        static_cast<void>(draft(plan, spilled, store));
        spilled.lay_out();
        const auto needed = GPU_SLEEP_TRY(spilled.needs(store));
        contents_.note_needs(store, needed, request, true, report);
    }
    return {};
}

Result<void> Transactions::adjust_asleep(const model::SleepRequest& request, model::Report& report) {
    std::map<std::string, std::string_view> elsewhere;
    std::set<std::string> directories;
    std::vector<contents::Number> asleep;
    for (const auto& [address, backing] : ledger_.backings()) {
        const auto& tag = ledger_.tag(backing.tag).name;
        if (!backing.is_asleep() || backing.kept.range == 0 || !model::means_tag(request.tags, tag)) continue;
        asleep.push_back(backing.kept.range);
        const auto asked = store_asked_for(request, tag);
        const bool is_damaged = backing.residence() == model::Residence::damaged;
        if (is_damaged && asked && contents_.is_elsewhere(backing.kept.range, *asked))
            elsewhere[tag] = *asked == model::Store::host ? "files" : "host memory";
        if (asked == model::Store::file) directories.merge(contents_.directories(backing.kept.range));
    }
    for (const auto& [tag, where] : elsewhere)
        report.notes.push_back(
            fmt::format("tag '{}' stays in {}: its kept contents are damaged", tag, where));
    for (const auto& directory : directories)
        if (std::error_code ignored; !std::filesystem::equivalent(directory, request.directory, ignored))
            report.notes.push_back(fmt::format("files stay in {}: they cannot move to another directory; "
                                               "wake the process first",
                                               directory));
    if (!request.keep_files || request.dry_run) return {};
    const auto kept = contents_.keep_files(asleep);
    if (!kept)
        return make_error(ErrorCode::io_failed,
                          "it is asleep, but existing files may be removed when the process wakes: {}",
                          kept.error().message);
    report.changed |= *kept;
    return {};
}

Bytes Transactions::forget_retained_beside(const model::SleepRequest& request) {
    const auto plan = plan_sleep(request);
    if (!plan) return 0;
    std::set<contents::Number> used;
    const auto add = [&](const ledger::Backing& backing) {
        if (store_for(request, ledger_.tag(backing.tag).name) == model::Store::host)
            used.insert(backing.kept.range);
    };
    for (const auto& [ordinal, part] : plan->devices) {
        for (const auto* backing : part.keep) add(*backing);
        for (const auto* backing : part.drop)
            if (!backing->preserved.empty()) add(*backing);
    }
    // What lies in kept files takes no memory, and may be used as it is.
    const auto is_in_the_way = [&](const ledger::Backing& backing) {
        return !backing.is_asleep() && !used.contains(backing.kept.range) &&
               contents_.find_retained(backing.kept.range) &&
               contents_.bytes_in(model::Store::host, backing.kept.range) > 0;
    };
    const auto before = contents_.retained();
    for (auto& [address, backing] : ledger_.backings())
        if (is_in_the_way(backing)) contents_.forget(std::exchange(backing.kept, {}).range);
    return before - contents_.retained();
}

Result<SleepPlan> Transactions::plan_sleep(const model::SleepRequest& request) {
    return sleep::plan_sleep(ledger_, request, is_elsewhere());
}

Result<WakePlan> Transactions::plan_wake(const model::WakeRequest& request) {
    return sleep::plan_wake(ledger_, request, is_elsewhere());
}

Result<Woken> Transactions::wake(const model::WakeRequest& request, const Control& control,
                                 model::Report& report, const Fetch& fetch, bool imports_alone) {
    auto plan = GPU_SLEEP_TRY(plan_wake(request));
    if (!fetch) plan.imports.clear();
    if (imports_alone) {
        WakePlan alone;
        alone.imports = std::move(plan.imports);
        plan = std::move(alone);
    }
    auto has_host_memory = count_host_backed_by(plan, request, report);
    if (request.dry_run) {
        if (!has_host_memory)
            refuse(report, has_host_memory.error().message + ": it would fail", has_host_memory.error().code);
        describe_plan(plan, report);
        GPU_SLEEP_TRY(
            add_memory([](Bytes free, Bytes taken) { return free - std::min(free, taken); }, report));
        note_short_devices(request, report);
        for (const auto& [tag, why] : plan.spoiled) { // all others would wake
            report.notes.push_back(why.message + ": it would stay asleep");
            if (!report.refusal_code) report.refusal_code = why.code;
        }
        return Woken{};
    }
    if (plan.is_empty()) return woken_but(plan.spoiled, plan);

    GPU_SLEEP_TRY(std::move(has_host_memory));
    WakeTransaction transaction(api_, contents_);
    const auto start = Clock::now();
    auto spoiled = plan.spoiled;
    Woken woken;
    auto prepared = guarded([&]() -> Result<void> {
        const log::Step step("take GPU memory and copy contents back");
        GPU_SLEEP_TRY(transaction.prepare(plan, control, fetch));
        spoiled.insert(transaction.spoiled().begin(), transaction.spoiled().end());
        // What takes memory comes first: what is awake must be told of.
        woken = woken_but(spoiled, plan);
        report.devices.reserve(report.devices.size() + plan.devices.size());
        static_cast<void>(GPU_SLEEP_TRY(pass_point_of_no_return(control)));
        return {};
    });
    if (!prepared) {
        if (transaction.undo()) contents_.protect(); // or it is read still
        static_cast<void>(count_host_backed());      // which takes no more
        return std::move(prepared).error();
    }
    transaction.commit();
    contents_.protect();
    static_cast<void>(count_host_backed()); // without what stays asleep
    report.times.transfer = seconds_since(start);
    report.changed |= transaction.has_changed();
    transaction.describe(report);
    return woken;
}

Result<void> Transactions::check_free_memory(const model::WakeRequest& request) {
    const auto plan = GPU_SLEEP_TRY(plan_wake(request));
    return check_free_memory(plan);
}

Result<void> Transactions::check_free_memory(const WakePlan& plan) const {
    for (const auto& [device, backings] : plan.devices) {
        const auto memory = GPU_SLEEP_TRY(memory_of(device));
        if (memory) GPU_SLEEP_TRY(sleep::check_free_memory(plan, device, *memory));
    }
    return {};
}

Result<std::optional<driver::MemoryInfo>> Transactions::memory_of(int device) const {
    const auto primary = GPU_SLEEP_TRY(driver::active_context(api_, device));
    auto* const context = primary ? primary->get() : own_context_of_(device);
    if (!context) return std::optional<driver::MemoryInfo>();
    const driver::CurrentContext current(api_, context);
    const bool is_there = current.status() == CUDA_SUCCESS && driver::current_device(api_) == device;
    // What has failed in one of the program's own contexts is no matter of ours.
    if (!primary && !is_there) return std::optional<driver::MemoryInfo>();
    const auto memory = driver::memory_info(api_);
    if (!memory && primary) return memory.error();
    return memory ? std::optional(*memory) : std::nullopt;
}

Result<void> Transactions::add_memory(Bytes (*estimate)(Bytes free, Bytes moved),
                                      model::Report& report) const {
    for (auto& device : report.devices) {
        const auto memory = GPU_SLEEP_TRY(memory_of(device.device));
        if (!memory) continue;
        device.total = memory->total;
        device.free_before = memory->free;
        device.free_after = estimate(device.free_before, device.released);
    }
    return {};
}

Result<void> Transactions::leave_host_memory() {
    for (auto& [address, backing] : ledger_.backings())
        if (backing.is_asleep() && !backing.holds_contents)
            GPU_SLEEP_TRY(release_memory(api_, backing)); // what a sleep could not release
    static_cast<void>(count_host_backed());
    const auto left = ledger_.host_backed();
    if (left == 0) return {};
    return make_error(ErrorCode::driver_failed, "it uses {} in host memory, which the driver may not restore",
                      format_bytes(left));
}

Result<void> Transactions::count_host_backed(Bytes more, Bytes made) {
    if (more > 0) GPU_SLEEP_TRY(contents_.budget().check(more));
    const auto bytes = ledger_.host_backed() + made + more;
    const auto counted = host_backed_.bytes();
    if (bytes > counted) return contents_.budget().take(host_backed_, bytes - counted);
    host_backed_.give(counted - bytes);
    return {};
}

Result<void> Transactions::count_host_backed_by(WakePlan& plan, const model::WakeRequest& request,
                                                model::Report& report) {
    const auto more = plan.needs_of_host();
    if (more == 0) return {};
    auto has_room = request.dry_run ? contents_.budget().check(more) : count_host_backed(more);
    if (has_room || request.live_bytes == 0) return has_room;
    auto on_gpu = plan;
    on_gpu.to_host.clear();
    if (!check_free_memory(on_gpu)) return has_room;
    report.notes.push_back("all memory wakes on the GPU: too little host memory for it and the contents; " +
                           has_room.error().message);
    plan = std::move(on_gpu);
    return {};
}

Woken Transactions::woken_but(const Spoiled& spoiled, const WakePlan& plan) const {
    Woken woken;
    const auto add = [&](std::vector<std::string>& names, const std::vector<ledger::TagId>& tags) {
        for (const auto tag : tags)
            if (!spoiled.contains(tag)) names.push_back(ledger_.tag(tag).name);
    };
    add(woken.tags, plan.tags);
    add(woken.dropped_tags, plan.dropped_tags);
    if (spoiled.empty()) return woken;
    std::vector<std::string> asleep;
    for (const auto& [tag, why] : spoiled) asleep.push_back(ledger_.tag(tag).name);
    woken.left = spoiled.begin()->second;
    woken.left->message += fmt::format("; asleep: {}", fmt::join(asleep, ", "));
    if (!woken.tags.empty())
        woken.left->message += fmt::format("; awake now: {}", fmt::join(woken.tags, ", "));
    return woken;
}

Result<bool> pass_point_of_no_return(const contents::Control& control) {
    if (Clock::now() >= control.deadline)
        return make_error(ErrorCode::timed_out, "time ran out when all was ready, and everything was undone");
    const auto are_told = GPU_SLEEP_TRY(control.wait_for_others());
    auto asked = guarded([&]() -> Result<bool> {
        if (control.progress({model::Progress::Phase::release, 0, 0})) return false;
        return make_error(ErrorCode::cancelled, "the request was withdrawn");
    });
    return are_told ? Result<bool>(true) : asked;
}

} // namespace gpu_sleep::sleep
