// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Prepare: seal and copy. Commit: unmap and release.

#include "sleep/sleep_transaction.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::sleep {

using ledger::Backing;
using ledger::Ledger;
using model::Residence;

namespace {

/// All that goes to sleep on the device, by address.
std::vector<Backing*> all_of(const DeviceSleepPlan& plan) {
    auto all = plan.keep;
    all.insert(all.end(), plan.drop.begin(), plan.drop.end());
    std::sort(all.begin(), all.end(),
              [](const Backing* a, const Backing* b) { return a->address < b->address; });
    return all;
}

Bytes bytes_of(const std::vector<Backing*>& backings) noexcept {
    Bytes sum = 0;
    for (const auto* backing : backings) sum += backing->bytes;
    return sum;
}

} // namespace

Result<void> SleepTransaction::prepare(const contents::Control& control) {
    drafted_ = draft(plan_, save_);
    for (const auto& [ordinal, part] : plan_.devices) {
        auto& device = devices_.emplace_back();
        device.device = ordinal;
        const auto all = all_of(part);
        device.runs = make_runs(all);
        device.unmapped.assign(device.runs.size(), false);
        device.report.kept = save_.bytes(ordinal);
        device.report.dropped = bytes_of(all) - device.report.kept;
    }
    for (auto& device : devices_) {
        auto session = open_session(api_, device.device, device.report);
        if (!session) return std::move(session).error();
        device.session = *std::move(session);
    }
    contents::ProgressCounter sealing(control, 0);
    GPU_SLEEP_TRY(run_side_by_side(devices_, sealing,
                                   [&](DeviceSleep& device) { return save_.seal(*device.session); }));
    save_.lay_out();
    GPU_SLEEP_TRY(await_share(sealing));
    GPU_SLEEP_TRY(check_room());
    Bytes total = 0;
    for (auto& device : devices_) {
        device.report.stored = save_.stored(device.device);
        device.report.copied = save_.copied(device.device);
        total += device.report.copied;
    }
    GPU_SLEEP_TRY(save_.begin());
    contents_.note_spare();
    contents::ProgressCounter progress(control, total);
    return run_side_by_side(devices_, progress,
                            [&](DeviceSleep& device) { return save_.take(*device.session, progress); });
}

Result<void> SleepTransaction::await_share(contents::ProgressCounter& progress) const {
    const auto needed = save_.needs(model::Store::host);
    if (!needed) return needed.error();
    Bytes ready = 0;
    for (const auto& device : devices_) ready += contents_.prepared(device.device);
    return contents::Contents::await_share(*needed - std::min(*needed, ready), progress);
}

Result<void> SleepTransaction::check_room() const {
    if (!looks_for_room_) return {};
    const auto needed = save_.needs(model::Store::host);
    if (!needed) return needed.error();
    const auto& options = contents_.options();
    auto room = options.room_for_contents(options.host_reserve);
    for (const auto& device : devices_) room += std::min(~room, contents_.prepared(device.device));
    if (*needed <= room) return {};
    return make_error(ErrorCode::out_of_host_memory, "needs {} of host memory, and there is room for {}",
                      format_bytes(*needed), format_bytes(room));
}

Result<void> SleepTransaction::unmap_all() {
    for (auto& device : devices_) {
        const model::StepClock::Timed timed(&device.session->steps(), model::Step::unmap);
        for (std::size_t i = 0; i < device.runs.size(); ++i) {
            GPU_SLEEP_TRY(driver::unmap(api_, device.runs[i].span()));
            device.unmapped[i] = true;
            for (auto* backing : device.runs[i].backings) backing->mapped = false;
        }
    }
    return {};
}

void SleepTransaction::map_again() {
    for (auto& device : devices_) {
        for (std::size_t i = 0; i < device.runs.size(); ++i) {
            if (!device.unmapped[i]) continue;
            const auto& run = device.runs[i];
            Result<void> done;
            for (auto* backing : run.backings) {
                done = driver::map(api_, {backing->address, backing->bytes}, backing->handle);
                if (!done) break;
                backing->mapped = true;
            }
            if (done) done = driver::set_access(api_, run.span(), run.backings.front()->access);
            device.unmapped[i] = !done;
            if (!done) log::error("a sleep could not be undone: {}", done.error().message);
        }
    }
}

std::size_t SleepTransaction::leave_asleep() {
    std::size_t count = 0;
    for (auto& device : devices_) {
        const auto& keep = plan_.devices.at(device.device).keep;
        for (std::size_t i = 0; i < device.runs.size(); ++i) {
            if (!device.unmapped[i]) continue;
            for (auto* backing : device.runs[i].backings) {
                const bool is_kept = std::find(keep.begin(), keep.end(), backing) != keep.end();
                if (is_kept)
                    Ledger::move(*backing, Residence::kept);
                else
                    drop(*backing);
                ++count;
            }
        }
    }
    return count;
}

Result<void> SleepTransaction::commit() {
    // Everything that takes memory comes first: behind the last unmap nothing may fail.
    admit();
    if (const auto named = guarded([this] { return save_.keep_files(); }); !named) {
        forget_kept();
        return named.error();
    }
    if (auto unmapped = unmap_all(); !unmapped) {
        map_again();
        const auto asleep = leave_asleep();
        forget_kept();
        if (asleep == 0) return std::move(unmapped).error();
        return make_error(ErrorCode::driver_failed,
                          "{}; memory that could not be mapped again sleeps, with the contents to be kept "
                          "({}): gpu-wake brings it back",
                          unmapped.error().message, counted(asleep, "range"));
    }
    for (auto& device : devices_) {
        release(device);
        const auto& plan = plan_.devices.at(device.device);
        for (auto* backing : plan.keep) Ledger::move(*backing, Residence::kept);
        for (auto* backing : plan.drop) drop(*backing);
    }
    for (auto* backing : plan_.give_up) {
        contents_.forget(std::exchange(backing->kept, {}).range);
        Ledger::move(*backing, Residence::dropped);
    }
    return {};
}

void SleepTransaction::drop(Backing& backing) noexcept {
    // Where no span of it is kept, what was retained of it goes, too.
    if (backing.kept.bytes == 0) contents_.forget(std::exchange(backing.kept, {}).range);
    Ledger::move(backing, Residence::dropped);
}

void SleepTransaction::release(DeviceSleep& device) {
    const model::StepClock::Timed timed(&device.session->steps(), model::Step::release);
    for (const auto& run : device.runs) {
        for (auto* backing : run.backings) {
            if (const auto released = driver::release(api_, backing->handle); !released) {
                // Nothing is lost: the handle stays, and waking maps it again.
                ++unreleased_;
                log::warning("range {:#x} keeps its GPU memory: {}", backing->address,
                             released.error().message);
                continue;
            }
            backing->handle = 0;
            backing->was_host_backed = std::exchange(backing->host_backed, false);
            if (!backing->was_host_backed) device.report.released += backing->bytes;
        }
    }
    const auto current = device.session->enter();
    if (const auto memory = device.session->memory_info()) device.report.free_after = memory->free;
}

void SleepTransaction::admit() noexcept {
    save_.admit();
    for (const auto& drafted : drafted_) drafted.backing->kept = drafted.kept;
}

void SleepTransaction::forget_kept() noexcept {
    for (const auto& drafted : drafted_)
        if (!drafted.backing->is_asleep())
            contents_.forget(std::exchange(drafted.backing->kept, {}).range, contents::Files::removed);
}

void SleepTransaction::describe(model::Report& report) const {
    for (const auto& device : devices_) add_report(report, device.report, *device.session);
    if (save_.spilled() != 0)
        ignoring_errors([&] {
            report.notes.push_back(fmt::format("host memory is short: {} of contents went to files",
                                               format_bytes(save_.spilled())));
        });
    if (unreleased_ == 0) return;
    ignoring_errors([&] {
        report.notes.push_back(fmt::format("the driver did not release {}; the next wake takes it back",
                                           counted(unreleased_, "range")));
    });
}

MoveTransaction::MoveTransaction(contents::Contents& contents, const SleepPlan& plan,
                                 contents::SaveOptions options)
    : plan_(plan), relocation_(contents, std::move(options)) {
    for (const auto* backing : plan.move) {
        const auto& target = plan.targets.at(backing->tag);
        relocation_.add({backing->device, target.tag}, target.store, backing->address, backing->kept.range);
    }
}

Result<void> MoveTransaction::prepare(const contents::Control& control) {
    GPU_SLEEP_TRY(relocation_.begin());
    contents::ProgressCounter progress(control, relocation_.bytes());
    return relocation_.carry(progress);
}

void MoveTransaction::describe(model::Report& report) const {
    for (const auto* backing : plan_.move)
        device_in(report, backing->device).relocated = relocation_.bytes(backing->device);
}

} // namespace gpu_sleep::sleep
