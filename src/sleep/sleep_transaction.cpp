// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Prepare: seal and copy. Commit: unmap and release.

#include "sleep/sleep_transaction.hpp"

#include "base/log.hpp"
#include "base/text.hpp"

namespace gpu_sleep::sleep {

using ledger::Backing;
using ledger::Ledger;
using model::Residence;

namespace {

/// All that goes to sleep on the device, by address.
std::vector<Backing*> all_of(const DeviceSleepPlan& plan) {
    auto all = plan.keep;
    for (const auto* more : {&plan.drop, &plan.stay}) all.insert(all.end(), more->begin(), more->end());
    std::ranges::sort(all, {}, &Backing::address);
    return all;
}

/// Of a run that is taken out.
bool is_asleep(const Run& run) noexcept {
    return run.backings.front()->is_asleep();
}

} // namespace

SleepTransaction::~SleepTransaction() {
    const auto unmap = [this](DeviceSleep& device, Backing& backing) -> Result<void> {
        const auto current = device.session->enter();
        GPU_SLEEP_TRY(current.check());
        GPU_SLEEP_TRY(device.session->synchronize()); // or it may be read still
        return unmap_memory(api_, backing);
    };
    for (auto& device : devices_)
        for (const auto& run : device.runs)
            for (auto* backing : run.backings)
                if (device.session && backing->is_asleep() && backing->mapped)
                    static_cast<void>(guarded([&] { return unmap(device, *backing); }));
}

Result<void> SleepTransaction::prepare(const contents::Control& control) {
    drafted_ = draft(plan_, save_);
    for (const auto& [ordinal, part] : plan_.devices) {
        auto& device = devices_.emplace_back();
        device.report.device = ordinal;
        const auto all = all_of(part);
        device.runs = make_runs(all);
        for (auto& run : make_runs(part.take_out)) device.runs.push_back(std::move(run));
        device.report.kept = save_.figures(ordinal).bytes - sum_of(part.take_out, &Backing::bytes) +
                             sum_of(part.stay, &Backing::bytes);
        device.report.dropped = sum_of(all, &Backing::bytes) - device.report.kept;
        device.session = GPU_SLEEP_TRY(open_session(api_, device.report));
    }
    // What is taken out of its own memory has its contents there until all is unmapped.
    for (const auto& device : devices_)
        for (const auto& run : device.runs)
            if (is_asleep(run)) GPU_SLEEP_TRY(map_all(api_, run));
    contents::ProgressCounter sealing(control, 0);
    GPU_SLEEP_TRY(run_side_by_side(devices_, sealing,
                                   [&](DeviceSleep& device) { return save_.seal(*device.session); }));
    save_.lay_out();
    GPU_SLEEP_TRY(find_room(sealing));
    Bytes total = 0;
    for (auto& device : devices_) {
        const auto figures = save_.figures(device.report.device);
        device.report.stored = figures.stored;
        device.report.copied = figures.copied;
        total += figures.moved;
    }
    GPU_SLEEP_TRY(save_.begin());
    contents_.note_spare();
    contents::ProgressCounter progress(control, total);
    return run_side_by_side(devices_, progress,
                            [&](DeviceSleep& device) { return save_.take(*device.session, progress); });
}

Result<void> SleepTransaction::find_room(contents::ProgressCounter& progress) const {
    const auto needed = GPU_SLEEP_TRY(save_.needs(model::Store::host));
    Bytes ready = 0;
    for (const auto& device : devices_) ready += contents_.prepared(device.report.device);
    auto& budget = contents_.budget();
    GPU_SLEEP_TRY(budget.await(needed - std::min(needed, ready), progress.host_patience(),
                               [&] { return progress.add(0); }));
    return looks_for_room_ ? budget.check(needed, ready) : Result<void>();
}

void SleepTransaction::unmap_all() noexcept {
    for (auto& device : devices_) {
        const model::StepClock::Timed timed(&device.session->steps(), model::Step::unmap);
        for (const auto& run : device.runs) {
            const auto unmapped = guarded([&] { return driver::unmap(api_, run.span()); });
            if (!unmapped) continue; // release() tries again, then the wake
            for (auto* backing : run.backings) backing->mapped = false;
        }
    }
}

Result<void> SleepTransaction::commit(bool goes_on) noexcept {
    save_.admit();
    for (const auto& drafted : drafted_) drafted.backing->kept = drafted.kept;
    not_kept_ = guarded([this] { return save_.keep_files(); });
    if (!not_kept_ && !goes_on) {
        forget_kept();
        return not_kept_;
    }
    unmap_all();
    for (auto& device : devices_) {
        const auto& plan = plan_.devices.at(device.report.device);
        for (auto* backing : plan.stay) stay_in_place(*backing);
        for (auto* backing : plan.take_out) backing->holds_contents = false; // its copy does
        release(device);
        for (auto* backing : plan.keep) Ledger::move(*backing, Residence::kept);
        for (auto* backing : plan.drop) drop(*backing);
    }
    for (auto* backing : plan_.give_up) give_up(*backing);
    return {};
}

void SleepTransaction::stay_in_place(Backing& backing) noexcept {
    contents_.forget(std::exchange(backing.kept, {}).range); // the program may have written since
    Ledger::move(backing, Residence::kept);
    backing.holds_contents = true;
}

void SleepTransaction::give_up(Backing& backing) noexcept {
    contents_.forget(std::exchange(backing.kept, {}).range);
    const bool was_in_place = backing.holds_contents;
    Ledger::move(backing, Residence::dropped);
    if (was_in_place) release(backing);
}

void SleepTransaction::drop(Backing& backing) noexcept {
    // Where no span of it is kept, what was retained of it goes, too.
    if (backing.kept.bytes == 0) contents_.forget(std::exchange(backing.kept, {}).range);
    Ledger::move(backing, Residence::dropped);
}

bool SleepTransaction::release(Backing& backing) noexcept {
    const auto released = guarded([&] { return release_memory(api_, backing); });
    if (released) return true;
    ++unreleased_; // nothing is lost: waking maps it again
    log::warning("range {:#x} keeps its memory: {}", backing.address, released.error().message);
    return false;
}

void SleepTransaction::release(DeviceSleep& device) noexcept {
    const model::StepClock::Timed timed(&device.session->steps(), model::Step::release);
    for (const auto& run : device.runs) {
        for (auto* backing : run.backings) {
            if (backing->holds_contents) continue;
            const bool was_on_gpu = frees_gpu(*backing);
            if (release(*backing) && was_on_gpu) device.report.released += backing->bytes;
        }
    }
    ignoring_errors([&] {
        const auto current = device.session->enter();
        if (const auto memory = device.session->memory_info()) device.report.free_after = memory->free;
    });
}

void SleepTransaction::forget_kept() noexcept {
    for (const auto& drafted : drafted_)
        if (!drafted.backing->is_asleep() || drafted.backing->holds_contents)
            contents_.forget(std::exchange(drafted.backing->kept, {}).range, contents::Files::removed);
}

void SleepTransaction::describe(model::Report& report) const {
    for (const auto& device : devices_) add_report(report, device.report, *device.session);
    for (const auto& [ordinal, part] : plan_.devices)
        for (const auto* backing : part.take_out)
            add_taken_out(report, ordinal, contents_.at(backing->kept.range).stored);
    note_in_place(plan_, report);
    if (save_.spilled() != 0)
        ignoring_errors([&] {
            report.notes.push_back(fmt::format("host memory is short: {} of contents went to {}",
                                               format_bytes(save_.spilled()),
                                               model::in_words(model::k_other_stores.front())));
        });
    if (!not_kept_)
        ignoring_errors([&] {
            report.notes.push_back("files may be removed when the process wakes: " +
                                   not_kept_.error().message);
        });
    if (unreleased_ == 0) return;
    ignoring_errors([&] {
        report.notes.push_back(fmt::format("the driver did not release {}; the next wake takes it back",
                                           counted(unreleased_, "range")));
    });
}

} // namespace gpu_sleep::sleep
