// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a request to a transaction and its report.

#include "sleep/engine.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "driver/context.hpp"
#include "sleep/room.hpp"
#include "sleep/sleep_transaction.hpp"
#include "sleep/wake_transaction.hpp"
#include "store/host_memory.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

namespace gpu_sleep::sleep {

using ledger::Backing;

namespace {

/// What `request` says of the store of `tag`, or null.
const model::TagStore* store_named_for(const model::SleepRequest& request, const std::string& tag) {
    const auto named = std::find_if(request.stores.begin(), request.stores.end(),
                                    [&](const model::TagStore& s) { return s.tag == tag; });
    return named == request.stores.end() ? nullptr : &*named;
}

/// Whether `request` wants what it keeps of `tag` in a file.
bool goes_to_file(const model::SleepRequest& request, const std::string& tag) {
    const auto* const named = store_named_for(request, tag);
    return (named == nullptr ? request.store : named->store) == model::Store::file;
}

bool is_asked_for(const model::SleepRequest& request, const std::string& tag) {
    return request.tags.empty() ||
           std::find(request.tags.begin(), request.tags.end(), tag) != request.tags.end();
}

Bytes kept_if_dropped(const Backing& backing) noexcept {
    Bytes sum = 0;
    for (const auto& span : backing.preserved) sum += span.bytes;
    return sum;
}

/// What a sleep keeps of a device: each tag's goes to one place. They bear no names.
std::map<ledger::TagId, std::vector<store::SnapshotExtent>> extents_by_tag(const DeviceSleepPlan& plan) {
    std::map<ledger::TagId, std::vector<store::SnapshotExtent>> tags;
    const auto add = [&](const Backing& backing, ledger::Span span) {
        tags[backing.tag].push_back({backing.address + span.offset, span.bytes, {}, backing.device});
    };
    for (const auto* backing : plan.keep) add(*backing, {0, backing->bytes});
    for (const auto* backing : plan.drop)
        for (const auto& span : backing->preserved) add(*backing, span);
    return tags;
}

void describe_plan(const SleepPlan& plan, model::Report& report) {
    for (const auto& [ordinal, part] : plan.devices) {
        auto& device = report.devices.emplace_back();
        device.device = ordinal;
        for (const auto* backing : part.keep) {
            device.released += backing->bytes;
            device.kept += backing->bytes;
        }
        for (const auto* backing : part.drop) {
            device.released += backing->bytes;
            device.kept += kept_if_dropped(*backing);
            device.dropped += backing->bytes - kept_if_dropped(*backing);
        }
    }
}

void describe_plan(const WakePlan& plan, model::Report& report) {
    for (const auto& [ordinal, backings] : plan.devices) {
        auto& device = report.devices.emplace_back();
        device.device = ordinal;
        for (const auto* backing : backings) {
            const auto kept = backing->kept_bytes();
            if (backing->handle == 0) device.released += backing->bytes;
            device.kept += kept;
            device.dropped += backing->bytes - kept;
        }
    }
}

/// Adds the memory of each device in `report`: as it is, and as it would be. Devices whose context the
/// program has given back are passed over: to ask for theirs would make a new one.
Result<void> add_memory(const driver::Api& api, Bytes (*estimate)(Bytes free, Bytes moved),
                        model::Report& report) {
    const auto contexts = driver::active_contexts(api);
    if (!contexts) return contexts.error();
    for (const auto& context : *contexts) {
        const driver::CurrentContext current(api, context.get());
        for (auto& device : report.devices) {
            if (device.device != context.device()) continue;
            const auto memory = driver::memory_info(api);
            if (!memory) return memory.error();
            device.total = memory->total;
            device.free_before = memory->free;
            device.free_after = estimate(memory->free, device.released);
        }
    }
    return {};
}

Bytes free_after_sleep(Bytes free, Bytes released) noexcept {
    return free + released;
}

Bytes free_after_wake(Bytes free, Bytes taken) noexcept {
    return free - std::min(free, taken);
}

/// Notes what host memory a sleep needs, and whether it is there.
void note_host_memory(Bytes needed, const Engine::Options& options, bool spills, model::Report& report) {
    if (needed == 0) return;
    auto headroom = store::host_headroom_beyond(options.host_reserve);
    if (const auto left = store::address_space_left(); left < headroom.bytes)
        headroom = {left, "the process's limit on address space, ulimit -v"};
    const auto available = headroom.bytes;
    const auto* const outcome = needed <= available ? ""
                                : spills            ? ": contents would go to files"
                                                    : ": it would fail";
    report.notes.push_back(fmt::format("needs {} of host memory, and {} may be taken ({}){}",
                                       format_bytes(needed), format_bytes(available), headroom.limited_by,
                                       outcome));
}

/// Notes what room files may need, and whether it is there. `is_spill`: only if host memory will not do.
void note_disk(Bytes needed, const std::string& directory, const Engine::Options& options, bool is_spill,
               model::Report& report) {
    if (needed == 0 || directory.empty()) return;
    auto room = store::SnapshotDirectory::room_in(directory);
    if (!room) {
        report.notes.push_back(room.error().message +
                               (is_spill ? ": nothing could be put there" : ": it would fail"));
        return;
    }
    std::string limit;
    if (const auto headroom = store::host_headroom_beyond(options.host_reserve);
        room->in_memory && headroom.bytes < room->bytes) {
        room->bytes = headroom.bytes;
        limit = fmt::format(", in host memory ({})", headroom.limited_by);
    }
    report.notes.push_back(
        fmt::format("{} at most {} in files in {}, and {} are free there{}{}",
                    is_spill ? "without enough host memory, needs" : "needs", format_bytes(needed), directory,
                    format_bytes(room->bytes), limit,
                    needed <= room->bytes ? "" : ": it fails unless they become small enough"));
}

void note_short_devices(model::Report& report) {
    for (const auto& device : report.devices)
        if (device.released > device.free_before)
            report.notes.push_back(fmt::format("GPU {} has {} free, and {} are needed: it would fail",
                                               device.device, format_bytes(device.free_before),
                                               format_bytes(device.released)));
}

/// Passes the point of no return: from here on neither a withdrawal nor the deadline is heeded, and the asker
/// has been told so. Errors: cancelled, timed_out.
Result<void> ask_a_last_time(const Control& control) {
    if (Clock::now() >= control.deadline)
        return make_error(ErrorCode::timed_out, "the time was over when all was ready, and it was undone");
    if (control.progress({model::Progress::Phase::release, 0, 0})) return {};
    return make_error(ErrorCode::cancelled, "the request was withdrawn");
}

/// Contents that were given up without touching the device belong in the report too.
void add_given_up(const SleepPlan& plan, model::Report& report) {
    for (const auto* backing : plan.give_up) {
        const auto same = [&](const model::DeviceReport& d) { return d.device == backing->device; };
        auto device = std::find_if(report.devices.begin(), report.devices.end(), same);
        if (device == report.devices.end()) {
            report.devices.emplace_back().device = backing->device;
            device = std::prev(report.devices.end());
        }
        device->dropped += backing->bytes;
    }
}

} // namespace

Result<void> Engine::sleep(const model::SleepRequest& request, const Control& control,
                           model::Report& report) {
    auto plan = plan_sleep(ledger_, request);
    if (!plan) return std::move(plan).error();
    report.dropped_without_refill = plan->without_refill;
    if (request.dry_run) return rehearse(request, *plan, report);
    if (plan->is_empty()) return {};
    auto keeping = keeping_for(request, report);
    if (!keeping) return std::move(keeping).error();
    SleepTransaction transaction(api_, pinner_, vaults_, options_, *std::move(keeping));
    const auto start = Clock::now();
    GPU_SLEEP_TRY(transaction.prepare(*plan, control));
    report.times.transfer = seconds_since(start);
    GPU_SLEEP_TRY(ask_a_last_time(control));
    report.devices.reserve(report.devices.size() + plan->devices.size() + plan->give_up.size());
    const auto prepared = Clock::now();
    GPU_SLEEP_TRY(transaction.commit(plan->give_up));
    report.times.release = seconds_since(prepared);
    report.changed = true;
    // It sleeps: no shortage makes a failure of that.
    transaction.describe(report);
    add_given_up(*plan, report);
    return {};
}

Result<void> Engine::rehearse(const model::SleepRequest& request, const SleepPlan& plan,
                              model::Report& report) const {
    describe_plan(plan, report);
    add_given_up(plan, report);
    const auto own = store::describe_own();
    if (!own) return own.error();
    Bytes in_host = 0;
    Bytes in_files = 0;
    Bytes if_all_spills = 0;
    for (const auto& [ordinal, part] : plan.devices) {
        for (const auto& [tag, extents] : extents_by_tag(part)) {
            auto description = *own; // which must take as many bytes as the real one
            description.id.assign(32, '0');
            description.created = store::utc_now();
            description.extents = extents;
            for (auto& extent : description.extents) extent.tag = ledger_.tag(tag).name;
            const auto file_bytes = store::most_file_bytes(description);
            if_all_spills += file_bytes;
            if (goes_to_file(request, ledger_.tag(tag).name))
                in_files += file_bytes;
            else
                in_host += description.content_bytes();
        }
    }
    note_host_memory(in_host, options_, request.spill, report);
    note_disk(in_files, request.directory, options_, false, report);
    if (request.spill && in_host > 0) note_disk(if_all_spills, request.directory, options_, true, report);
    return add_memory(api_, free_after_sleep, report);
}

Result<Keeping> Engine::keeping_for(const model::SleepRequest& request, model::Report& report) const {
    Keeping keeping;
    keeping.keeps_files = request.keep_files;
    keeping.name = [this](ledger::TagId tag) { return ledger_.tag(tag).name; };
    keeping.to_file = [this, &request](ledger::TagId tag) {
        return goes_to_file(request, ledger_.tag(tag).name);
    };
    const bool needs_directory =
        request.store == model::Store::file ||
        std::any_of(request.stores.begin(), request.stores.end(),
                    [](const model::TagStore& each) { return each.store == model::Store::file; });
    if (request.directory.empty()) return keeping;
    auto directory = store::SnapshotDirectory::open(request.directory);
    if (!directory && needs_directory) return std::move(directory).error();
    if (!directory) return keeping;
    // Whoever looks here takes away what a crash has left.
    if (const auto removed = (*directory)->remove_leftovers(); !removed)
        log::debug("leftovers stay: {}", removed.error().message);
    if (const auto doubtful = (*directory)->doubtful(); doubtful && !doubtful->empty()) {
        auto note = fmt::format(
            "in {}, what may be of processes that cannot be seen from here stays: {}, the first {}",
            request.directory, counted(doubtful->size(), "snapshot"), doubtful->front().text());
        // A sleep may try again.
        if (std::find(report.notes.begin(), report.notes.end(), note) == report.notes.end())
            report.notes.push_back(std::move(note));
    }
    if (needs_directory) keeping.directory = *std::move(directory);
    return keeping;
}

void Engine::adjust_asleep(const model::SleepRequest& request, model::Report& report) {
    std::map<std::string, std::string_view> elsewhere;
    std::set<std::uint64_t> in_files;
    for (const auto& [address, backing] : ledger_.backings()) {
        if (!backing.is_asleep() || !is_asked_for(request, ledger_.tag(backing.tag).name)) continue;
        const auto& tag = ledger_.tag(backing.tag).name;
        const bool to_file = goes_to_file(request, tag);
        for (const auto& extent : backing.kept) {
            if (extent.in_file) in_files.insert(extent.vault);
            if (to_file && !extent.in_file) elsewhere[tag] = "host memory";
            if (!to_file && extent.in_file && store_named_for(request, tag)) elsewhere[tag] = "files";
        }
    }
    for (const auto& [tag, store] : elsewhere)
        report.notes.push_back(fmt::format(
            "tag '{}' stays in {}: contents are not moved while they sleep; wake it first", tag, store));
    if (!request.keep_files || request.dry_run) return;
    const auto kept = keep_files(in_files);
    if (!kept)
        report.notes.push_back("files that were there already may go when the process wakes: " +
                               kept.error().message);
    else
        report.changed |= *kept > 0;
}

Result<std::size_t> Engine::keep_files(const std::set<std::uint64_t>& vaults) {
    std::size_t count = 0;
    for (const auto id : vaults) {
        auto& vault = vaults_.at(id);
        if (vault.keeps_file) continue;
        GPU_SLEEP_TRY(vault.snapshot->file.keep());
        vault.keeps_file = true;
        ++count;
        GPU_SLEEP_TRY(vault.snapshot->file.flush_name());
    }
    return count;
}

Result<Woken> Engine::wake(const model::WakeRequest& request, const Control& control, model::Report& report) {
    const auto plan = plan_wake(ledger_, request);
    if (!plan) return plan.error();
    if (request.dry_run) {
        describe_plan(*plan, report);
        for (const auto& [tag, why] : plan->spoiled)
            report.notes.push_back(why.message + ": it would stay asleep");
        GPU_SLEEP_TRY(add_memory(api_, free_after_wake, report));
        note_short_devices(report);
        return Woken{};
    }
    if (plan->is_empty()) return woken_but(plan->spoiled, *plan);

    WakeTransaction transaction(api_, pinner_, vaults_, options_);
    const auto start = Clock::now();
    auto spoiled = plan->spoiled;
    Woken woken;
    auto prepared = guarded([&]() -> Result<void> {
        GPU_SLEEP_TRY(transaction.prepare(*plan, control));
        spoiled.insert(transaction.spoiled().begin(), transaction.spoiled().end());
        // What takes memory comes first: what is awake must be told of.
        woken = woken_but(spoiled, *plan);
        report.devices.reserve(report.devices.size() + plan->devices.size());
        return ask_a_last_time(control);
    });
    if (!prepared) {
        transaction.undo();
        return std::move(prepared).error();
    }
    transaction.commit();
    report.times.transfer = seconds_since(start);
    report.changed = transaction.has_changed();
    transaction.describe(report);
    return woken;
}

Result<void> Engine::check_room(const model::WakeRequest& request) {
    const auto plan = plan_wake(ledger_, request);
    if (!plan) return plan.error();
    return sleep::check_room(api_, *plan);
}

Woken Engine::woken_but(const Spoiled& spoiled, const WakePlan& plan) const {
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

} // namespace gpu_sleep::sleep
