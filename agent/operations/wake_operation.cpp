// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A wake as lists of steps (k_begin, k_back, k_wake, k_end).

#include "common/interception.hpp"
#include "operations/quiesce.hpp"
#include "operations/steps.hpp"
#include "sharing/sharing.hpp"

#include <fmt/ranges.h>

namespace gpu_sleep::agent::operations {

namespace {

using model::Progress;
using model::Report;

/// One try of a wake.
class Wake : public Operation {
public:
    Wake(const Ground& all, const WakeUses& its, const model::WakeRequest& request,
         const server::Asking& asking)
        : Operation(all, asking.progress, request, model::Operation::wake), its_(its), request_(request),
          joint_(request.joint, asking.progress, asking.directives),
          is_noted_(!asking.is_tried && !request.dry_run) {
        // What was asked to bound all bounds the wait for GPU memory, too.
        if (request.bounds_all) deadline = asking.since + request.timeout + request.wait;
    }

    [[nodiscard]] Result<Report> run();

    Result<void> take_turn() {
        GPU_SLEEP_TRY(joint_.announce());
        return Operation::take_turn(false);
    }
    Result<void> look() {
        is_deep_ = GPU_SLEEP_TRY(ground.deep.look());
        if (!request_.dry_run) report.notes = sharing::adopt_orphans(memory);
        if (is_deep_ || request_.gpus.empty() || ground.deep.has_moved(request_.gpus)) return {};
        ground.settle_gate(); // somebody else may have brought it back
        return make_error(
            ErrorCode::invalid_argument,
            "it does not sleep deeply, so its memory cannot move to another GPU: put it to sleep "
            "with gpu-sleep --deep first");
    }

    /// After a deep sleep: sets aside the room for all that comes back.
    Result<void> set_room_aside() {
        const auto find_room = [this](const client::BytesByGpu& of_others) {
            return ground.deep.find_room(request_, of_others);
        };
        // The first look takes 20 ms and more, for which nobody else is kept from counting. What it finds
        // missing may be there once others are done.
        const auto found = find_room({});
        Result<GpuLines::Room> room = GpuLines::Room();
        if (found || found.error().code == ErrorCode::out_of_device_memory)
            room = its_.lines.wait_for_room(ground.deep.gpus(request_), find_room, deadline, [this] {
                return progress({Progress::Phase::waiting, 0, 0});
            });
        else
            room = found.error();
        ground.deep.end_looks();
        room_ = GPU_SLEEP_TRY(std::move(room));
        return {};
    }
    void give_room_back() noexcept { room_ = {}; }
    /// Brings back what the driver has taken.
    Result<void> end_deep() {
        GPU_SLEEP_TRY(sleep::telling_of_call(progress, [this] { return ground.deep.end(request_); }));
        ground.settle_gate(); // where nothing sleeps but the driver's part, it opens here
        report.changed = has_restored_ = true;
        return {};
    }

    /// Whether a wake could be begun now: without room nothing is, so that the program hears nothing of a
    /// wake that is tried often.
    Result<void> check_free_memory() {
        if (request_.dry_run) return {};
        const auto contexts = keep_contexts(true);
        return memory.with_lock([this](LockedMemory& locked) {
            return guarded([&] { return locked.engine().check_free_memory(request_); });
        });
    }
    /// Contexts must not end while memory comes back, and what passes a checked gate must not see half of it.
    Result<void> shut_gate() {
        // What callbacks take comes first: once memory is awake they must run.
        event_ = std::make_shared<Event>();
        jobs_ = its_.callbacks.draft_after_wake();
        return shut_gate_to_wake(progress, deadline);
    }
    void settle_gate() noexcept { ground.settle_gate(); }
    /// The transaction.
    Result<void> bring_back() {
        const auto contexts = keep_contexts(request_.dry_run);
        sleep::Control control{progress, request_.bounds_all ? deadline : Clock::time_point::max()};
        control.wait_for_others = [this] {
            give_room_back(); // all is mapped, and another of those that go together may wait for it
            return wait_ready(joint_, request_.party);
        };
        memory.shared_ranges().take_part(request_.party);
        const bool has_changed = std::exchange(report.changed, false);
        std::vector<UnsharedFd> descriptors; // of shared memory, until all is mapped
        woken_ = GPU_SLEEP_TRY(memory.with_lock([&](LockedMemory& locked) {
            const auto in_place = locked.ledger().in_place();
            const sleep::Fetch fetch = [&](std::span<ledger::Backing* const> imports,
                                           const sleep::Spoiled& spoiled) {
                give_room_back(); // which others may wait for
                // Each has what is its own by now, and may wait for what the others have.
                const auto wakes = [&](ledger::TagId tag) {
                    return !spoiled.contains(tag) &&
                           model::means_tag(request_.tags, locked.ledger().tag(tag).name);
                };
                if (request_.joint) sharing::settle_shared(memory, locked, request_.party, wakes);
                // Its owner may copy for as long as this process may, and the command gives up for all.
                const auto until = request_.joint ? control.deadline : deadline;
                return sharing::fetch_imports(memory.api(), imports, descriptors, request_, until, [this] {
                    return progress({Progress::Phase::waiting, 0, 0});
                });
            };
            const auto wake = [&](const sleep::Fetch& with, bool imports_alone) {
                auto woken = ground.transact(
                    locked, [&] { return locked.wake(request_, control, report, with, imports_alone); });
                if (!request_.dry_run) sharing::settle_shared(memory, locked);
                return woken;
            };
            // Others that wake for this one may wait for what it has.
            const bool is_own_first = request_.with_sharers && !request_.joint && !request_.dry_run &&
                                      sharing::any_import_sleeps(locked);
            auto woken = wake(is_own_first ? sleep::Fetch() : fetch, false);
            if (is_own_first && woken)
                if (const auto rest = wake(fetch, true); !rest && !woken->left)
                    woken->left = make_error(ErrorCode::driver_failed, "what it shares sleeps on: {}",
                                             rest.error().message);
            memory.shared_ranges().take_part(0);
            from_place_ = in_place - locked.ledger().in_place();
            return woken;
        }));
        has_woken_ = report.changed;
        report.changed |= has_changed;
        return {};
    }
    Result<void> run_callbacks() {
        give_room_back();                                  // they take their time
        if (!has_woken_ || woken_.tags.empty()) return {}; // the end of a pause is not told
        const auto called = Clock::now();
        if (intercepts()) memory.let_allocate();
        *event_ = {0, std::move(woken_.tags), std::move(woken_.dropped_tags), ground.deep.was_deep()};
        ignoring_errors([&] { jobs_ = its_.callbacks.draft_after_wake(); }); // as they are by now
        auto notes = its_.callbacks.run_after_wake(jobs_, event_, called + request_.timeout);
        // After a refill that may have failed, what was dropped counts as not refilled, whatever was said.
        if (!notes.empty()) memory.require_refill(event_->dropped_tags);
        ignoring_errors([&] { std::ranges::move(notes, std::back_inserter(report.notes)); });
        report.times.callbacks = seconds_since(called);
        return {};
    }
    Result<void> open_gate() {
        if (has_woken_ || has_restored_) {
            its_.idle.note_wake();
            ground.status.note(&ProcessStatus::Notes::woken, Clock::now());
        }
        if (has_woken_) memory.end_lock();
        ground.settle_gate();
        return {};
    }

    /// Of what runs from host memory, as much as was asked for.
    Result<void> bring_back_live() {
        // For whoever asks how long another wake would take; not where the time was not all for copies.
        const auto bytes = sum_of(report.devices, &model::DeviceReport::kept);
        if (report.changed && bytes > 0 && from_place_ == 0)
            ground.status.note(&ProcessStatus::Notes::brought_back,
                               {bytes, seconds_since(start) - report.times.callbacks});
        const bool has_woken = report.changed;
        auto back = move_live();
        if (back || !has_woken) return back;
        note("memory that runs from host memory stays there: {}", back.error().message);
        return {};
    }
    /// Whoever retains nothing expects host memory back when its own wake returns, not seconds later.
    Result<void> give_host_memory_back() {
        if (request_.live_bytes == 0 && memory.with_lock([](const LockedMemory& locked) {
                return locked.contents().room_beside_retained(model::k_all_bytes) == 0;
            }))
            ground.giving_back.retired();
        return {};
    }

private:
    /// Whether the process has none of the tags, and no pause ends: that of a deep sleeper ends when it
    /// wakes.
    [[nodiscard]] bool is_for_others() const {
        if (!request_.ignore_unknown_tags || request_.tags.empty()) return false;
        return memory.with_lock([&](const LockedMemory& locked) {
            return (is_deep_ || !locked.is_paused()) &&
                   std::ranges::none_of(request_.tags, [&](const std::string& name) {
                       return locked.ledger().find_tag(name).has_value();
                   });
        });
    }
    /// Reports what can be told of a wake from a deep sleep without the driver.
    [[nodiscard]] Result<Report> rehearse_deep() {
        report.devices = GPU_SLEEP_TRY(ground.deep.needs(request_));
        auto rehearsed = completed();
        rehearsed.notes.emplace_back(
            "the driver brings it back to the GPU first, for which there must be room");
        note_short_devices(request_, rehearsed);
        return rehearsed;
    }
    /// Wakes what sleeps, the driver's part apart. Errors: as wake().
    [[nodiscard]] Result<void> wake_memory();
    [[nodiscard]] Result<void> move_live() {
        return request_.live_bytes == 0 ? Result<void>() : move_back(*this, its_.live, request_);
    }
    /// The report, with files that could not be removed, and how all stands.
    [[nodiscard]] Report completed() noexcept {
        memory.with_lock([&](const LockedMemory& locked) {
            ignoring_errors([&] { // a shortage only thins it
                for (const auto& file : locked.contents().files_left_behind())
                    note("{} is empty but stays: the process can no longer write to its directory; "
                         "gpu-snapshot clean, run by a user who may, removes it",
                         file.string());
            });
            if (request_.dry_run && locked.is_paused() && locked.state() != model::State::paused)
                note("its pause would end as well");
        });
        return reported();
    }

    const WakeUses& its_;
    const model::WakeRequest& request_;
    Joint joint_;
    const bool is_noted_;
    bool is_deep_ = false;
    /// After a deep sleep: kept until all is mapped, or others might count on the room.
    GpuLines::Room room_;
    bool has_restored_ = false; ///< what the driver had taken
    bool has_woken_ = false;    ///< what slept
    sleep::Woken woken_;
    std::shared_ptr<Event> event_;
    Callbacks::Jobs jobs_;
    Bytes from_place_ = 0; ///< of what woke, what was only mapped
};

constexpr Step<Wake> k_begin[] = {
    {"wait for other operations", &Wake::take_turn},
    {"look how it sleeps", &Wake::look},
};
/// From a deep sleep.
constexpr Step<Wake> k_back[] = {
    {"wait for GPU memory", &Wake::set_room_aside, &Wake::give_room_back},
    {"have the driver bring it back", &Wake::end_deep, nullptr, std::nullopt, true},
};
constexpr Step<Wake> k_wake[] = {
    {"look for GPU memory", &Wake::check_free_memory},
    {"shut the gate", &Wake::shut_gate, &Wake::settle_gate, std::nullopt, true},
    {"take GPU memory and copy contents back", &Wake::bring_back},
    {"callbacks after the wake", &Wake::run_callbacks},
    {"settle the gate", &Wake::open_gate},
};
constexpr Step<Wake> k_end[] = {
    {"move host memory back to the GPU", &Wake::bring_back_live},
    {"give host memory back", &Wake::give_host_memory_back},
};

Result<void> Wake::wake_memory() {
    const driver::RelaxedCaptureMode relaxed(memory.api());
    auto done = run_steps<Wake>(*this, k_wake, request_.dry_run, is_noted_);
    if (done && request_.dry_run) done = bring_back();
    if (done && woken_.left) done = *std::move(woken_.left);
    if (!done)
        for (const auto& note : report.notes) log::warning("{}", note); // the answer has no place for them
    if (!done || request_.dry_run) return done ? move_live() : done;
    return run_steps<Wake>(*this, k_end, false, is_noted_ || report.changed);
}

Result<Report> Wake::run() {
    GPU_SLEEP_TRY(run_steps<Wake>(*this, k_begin, request_.dry_run, is_noted_));
    if (is_for_others()) return completed();
    if (is_deep_ && request_.dry_run) return rehearse_deep();
    if (is_deep_) GPU_SLEEP_TRY(run_steps<Wake>(*this, k_back, false, is_noted_));
    if (auto done = wake_memory(); !done) {
        if (!request_.gpus.empty())
            done.error().message +=
                "; it is on the other GPU already: gpu-wake without --gpu continues there";
        return std::move(done).error();
    }
    return completed();
}

} // namespace

Result<Report> wake(const Ground& ground, const WakeUses& its, const model::WakeRequest& request,
                    const server::Asking& asking) {
    return Wake(ground, its, request, asking).run();
}

} // namespace gpu_sleep::agent::operations
