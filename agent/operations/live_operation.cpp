// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The steps of a move, and what it says of itself.

#include "base/log.hpp"
#include "common/interception.hpp"
#include "operations/quiesce.hpp"
#include "registry/registry.hpp"
#include "sleep/live_move.hpp"
#include "sleep/live_plan.hpp"
#include "sleep/per_device.hpp"
#include "unseen/unseen.hpp"

#include <fmt/format.h>

namespace gpu_sleep::agent::operations {

using sleep::Direction;
using sleep::Verdict;

namespace {

/// How long work that runs may keep a piece waiting, and with it all that the program submits meanwhile.
constexpr Milliseconds k_patience{2'000};
/// For how long a piece makes way for contexts that end, one after the other.
constexpr Milliseconds k_patience_with_ends{10'000};
/// For how long a program is left to its work, at most, between two pauses.
constexpr Milliseconds k_most_rest{100};

constexpr const char* k_thread = "gpu-sleep-live";

std::string_view words_of(Direction direction) noexcept {
    return direction == Direction::to_host ? "to host memory" : "back to the GPU";
}

/// One move, in the turn of the operation that makes it. On the operations thread.
class LiveOperation {
public:
    /// What is moved, and notes for the user, are added to the report of `its`, which outlives it.
    LiveOperation(Operation& its, const LiveUses& uses, Direction direction, const model::Terms& terms,
                  bool is_forced)
        : its_(its), uses_(uses), memory_(its.memory), direction_(direction),
          deadline_(terms.bounds_all ? its.deadline : Clock::time_point::max()), is_forced_(is_forced),
          alone_(false, its.progress, k_alone), limit_(sleep::first_piece_limit(direction)) {}

    /// Moves what sleep::plan_live() chooses, or says what that would do; what is written all the time stays
    /// where it is, with a note. Ends at the first error, which says what has moved and stays moved. A late
    /// callback, whose work nothing holds back, is awaited first. Errors: those of plan_live(), MemoryKind,
    /// Callbacks::await_idle(), Quiesce and LiveMove; out_of_host_memory, driver_failed.
    Result<void> run(const std::vector<std::string>& tags, Bytes bytes, bool is_dry) {
        const auto parts = GPU_SLEEP_TRY(plan(tags, bytes));
        // Refused before anything moves.
        for (const auto& part : parts) GPU_SLEEP_TRY(kind(part.device));
        if (parts.empty()) return {};
        if (is_dry) return rehearse(parts);
        for (const auto& part : parts) largest_ = std::max(largest_, part.span.bytes);
        GPU_SLEEP_TRY(uses_.callbacks.await_idle(its_.deadline));
        GPU_SLEEP_TRY(note_memory(&model::DeviceReport::free_before));
        auto done =
            guarded([&] { return direction_ == Direction::to_host ? move_out(parts) : move_in(parts); });
        leave_contexts();
        static_cast<void>(count_host(0)); // which takes nothing more
        its_.report.changed |= moved_ > 0;
        ignoring_errors([&] {
            for (const auto& [ordinal, clock] : clocks_) add_steps(ordinal, clock.times());
            static_cast<void>(note_memory(&model::DeviceReport::free_after));
            if (stayed_ > 0)
                its_.note("{} did not move: in each of {} attempts, the program wrote more than a tenth of "
                          "it during the copy",
                          format_bytes(stayed_), sleep::k_most_rounds);
            if (moved_ > 0 && done)
                its_.note("{} moved {} while the program ran; its work waited for {} at most",
                          format_bytes(moved_), words_of(direction_),
                          format_seconds(its_.report.longest_pause));
            if (moved_ > 0 && !done)
                done.error().message += fmt::format("; before that, {} moved {}, and stay there",
                                                    format_bytes(moved_), words_of(direction_));
        });
        return done;
    }

private:
    Result<void> rehearse(std::span<const sleep::LivePart> parts) {
        for (const auto& part : parts) add_bytes(part.device, part.span.bytes);
        GPU_SLEEP_TRY(note_memory(&model::DeviceReport::free_before));
        for (auto& device : its_.report.devices)
            device.free_after = direction_ == Direction::to_host
                                    ? device.free_before + device.released
                                    : device.free_before - std::min(device.free_before, device.released);
        const auto expected = sleep::estimate_move(direction_, parts);
        its_.note("{} would move {} in about {} if the program is at rest; its work would wait for about {} "
                  "at a time",
                  format_bytes(sleep::bytes_of(parts)), words_of(direction_),
                  format_seconds(expected.time.count()), format_seconds(expected.pause.count()));
        return {};
    }

    Result<std::vector<sleep::LivePart>> plan(const std::vector<std::string>& tags, Bytes bytes) {
        auto parts = memory_.with_lock([&](const LockedMemory& locked) {
            return guarded([&] { return sleep::plan_live(locked.ledger(), direction_, tags, bytes); });
        });
        if (parts && !parts->empty() && !intercepts())
            return make_error(ErrorCode::driver_failed, "{}", k_not_intercepted);
        return parts;
    }

    /// The memory of `device` that contents go to. Errors: those of MemoryKind.
    Result<const driver::MemoryKind*> kind(int device) {
        if (const auto known = kinds_.find(device); known != kinds_.end()) return &known->second;
        const auto& api = memory_.api();
        auto made = direction_ == Direction::to_host ? driver::MemoryKind::of_host_near(api, device)
                                                     : driver::MemoryKind::of_device(api, device);
        if (!made) return std::move(made).error();
        return &kinds_.emplace(device, *std::move(made)).first->second;
    }

    Result<void> move_out(std::span<const sleep::LivePart> parts) {
        const auto total = sleep::bytes_of(parts);
        Bytes done = 0;
        std::unique_ptr<sleep::LiveMove> moved;
        std::unique_ptr<sleep::LiveMove> piece;
        for (auto next = cut(parts); piece || next; piece = std::exchange(next, cut(parts))) {
            GPU_SLEEP_TRY(check_may_go_on(done, total));
            Result<void> created;
            GPU_SLEEP_TRY(copy_beside(piece.get(), next.get(), moved.get(), created));
            if (piece) {
                GPU_SLEEP_TRY(finish(*piece));
                done += piece->bytes();
            }
            GPU_SLEEP_TRY(created); // what was ready before has moved
            static_cast<void>(count_host(next ? next->bytes() : 0));
            moved = std::move(piece);
        }
        return {};
    }

    Result<void> move_in(std::span<const sleep::LivePart> parts) {
        const auto total = sleep::bytes_of(parts);
        Bytes done = 0;
        std::unique_ptr<sleep::LiveMove> moved;
        while (auto piece = cut(parts)) {
            GPU_SLEEP_TRY(check_may_go_on(done, total));
            GPU_SLEEP_TRY(guarded([&] { return piece->create(); }));
            // Host memory takes as long to be released as to be copied.
            std::optional<sleep::Beside> releasing;
            if (moved)
                releasing.emplace(k_thread, [&] {
                    const driver::RelaxedCaptureMode relaxed(memory_.api());
                    moved->let_go();
                });
            if (works_until_) {
                std::this_thread::sleep_until(std::min(*works_until_, deadline_));
                releasing.reset(); // it would make the next pause longer
            }
            GPU_SLEEP_TRY(finish(*piece));
            done += piece->bytes();
            releasing.reset();
            static_cast<void>(count_host(piece->moved()));
            moved = std::move(piece);
        }
        return {};
    }

    /// Tells of `done` bytes of `total`. Errors: no_process, timed_out, cancelled.
    Result<void> check_may_go_on(Bytes done, Bytes total) {
        if (memory_.is_ending()) return process_is_ending();
        if (Clock::now() >= deadline_) return make_error(ErrorCode::timed_out, "time ran out");
        if (!its_.progress({model::Progress::Phase::transfer, done, total})) return withdrawn();
        return {};
    }

    /// The first piece of `rest`, which is shortened by it; null where nothing is left.
    std::unique_ptr<sleep::LiveMove> cut(std::span<const sleep::LivePart>& rest) {
        if (rest.empty()) return nullptr;
        const auto piece = sleep::first_piece(rest, limit_);
        const auto device = piece.front().device;
        rest = rest.subspan(piece.size());
        return std::make_unique<sleep::LiveMove>(memory_.api(), kinds_.at(device), piece, clocks_[device]);
    }

    /// Copies `piece`, if there is one, while a thread makes the memory of `next` and lets go of `moved`.
    /// `created`: what became of `next`.
    Result<void> copy_beside(sleep::LiveMove* piece, sleep::LiveMove* next, sleep::LiveMove* moved,
                             Result<void>& created) {
        if (next) created = count_host(piece ? piece->bytes() : 0, next->bytes());
        // Not beside the swap: the driver makes memory in the same turn as it maps some, a piece at a time.
        sleep::Beside beside(k_thread, [&] {
            const driver::RelaxedCaptureMode relaxed(memory_.api());
            if (moved) moved->let_go();
            if (next && created) created = guarded([&] { return next->create(); });
        });
        auto copied = guarded([&]() -> Result<void> {
            if (piece) return copy(*piece);
            GPU_SLEEP_TRY(session(next->device()));
            return {};
        });
        const auto since = Clock::now();
        beside.wait();
        if (next) clocks_[next->device()].add(model::Step::await_host, Clock::now() - since);
        return copied;
    }

    Result<void> copy(sleep::LiveMove& piece) {
        auto done = guarded([&]() -> Result<void> {
            const auto with = GPU_SLEEP_TRY(session(piece.device()));
            for (;;) {
                const auto copied = GPU_SLEEP_TRY(memory_.with_lock([&](LockedMemory& locked) {
                    return guarded([&] { return piece.copy(*with, locked.ledger()); });
                }));
                if (copied) return piece.seal(*with);
            }
        });
        if (!done) leave_contexts();
        return done;
    }

    /// Swaps it, and copies what goes to the host again as often as needed. What is not moved then lets go of
    /// the memory that was made for it.
    Result<void> finish(sleep::LiveMove& piece) {
        for (int round = 1;; ++round) {
            const auto verdict = swap(piece, round);
            add_bytes(piece.device(), piece.moved());
            if (!verdict) return verdict.error();
            if (*verdict == Verdict::stay) stayed_ += piece.bytes();
            if (*verdict != Verdict::again) break;
            GPU_SLEEP_TRY(copy(piece));
        }
        if (piece.moved() < piece.bytes()) piece.let_go(); // what stays, or is gone, has memory for nothing
        return {};
    }

    /// Holds work back, until the gate is settled, for a piece on `device`, whose session is ready. Makes way
    /// for contexts that end. Errors: those of Quiesce::run() and session().
    Result<void> hold_work(int device) {
        const auto gives_up = Clock::now() + k_patience_with_ends;
        for (;;) {
            GPU_SLEEP_TRY(session(device));
            // Who ends a context has passed the gate, and waits for the contexts that sessions hold.
            bool makes_way = false;
            const server::ProgressSink progress = [&](const model::Progress& now) {
                makes_way |= registry::books().contexts.one_waits_to_end();
                return !makes_way && its_.progress(now);
            };
            const auto begun = Clock::now();
            auto is_quiet = stop_work(progress, std::min(deadline_, begun + k_patience));
            its_.report.times.drain += seconds_since(begun);
            if (is_quiet) return {};
            if (!makes_way) return std::move(is_quiet).error();
            its_.ground.settle_gate();
            if (Clock::now() >= std::min(deadline_, gives_up))
                return make_error(ErrorCode::timed_out, "the program destroys contexts again and again");
        }
    }
    Result<void> stop_work(const server::ProgressSink& progress, Clock::time_point deadline) {
        if (!memory_.with_lock([](const LockedMemory& locked) { return pause_would_hold_work(locked); }))
            return {};
        if (auto seen = unseen::check_all(); !seen && !is_forced_) return seen;
        Quiesce quiesce(its_.ground, nullptr, progress, alone_, deadline);
        GPU_SLEEP_TRY(quiesce.shut_gate(false));
        if (auto seen = unseen::check_calls(); !seen && !is_forced_) return seen;
        return quiesce.drain();
    }

    /// Holds work back meanwhile.
    Result<Verdict> swap(sleep::LiveMove& piece, int round) {
        const auto& gate = gate::Gate::instance();
        const auto held_before = gate.waiting().held_ever;
        std::optional<Clock::time_point> held_since; // all of its work
        auto verdict = guarded([&]() -> Result<Verdict> {
            GPU_SLEEP_TRY(hold_work(piece.device()));
            held_since = Clock::now();
            auto& session = *sessions_.at(piece.device());
            // Before, it would wait for the program's work; outward it does so while host memory is made.
            if (direction_ == Direction::to_device) GPU_SLEEP_TRY(reserve_fingerprints(session));
            return memory_.with_lock([&](LockedMemory& locked) {
                return its_.ground.transact(locked, [&] {
                    auto found = guarded(
                        [&] { return piece.swap(session, locked.ledger(), locked.contents(), round); });
                    if (!found) leave_contexts(); // before the program may free what is being read
                    return found;
                });
            });
        });
        if (!verdict) uses_.come_first_at_exit(); // what could not be mapped again sleeps
        its_.ground.settle_gate();
        works_until_.reset();
        if (!held_since) return verdict;
        const auto ended = Clock::now();
        const bool was_felt = gate.waiting().held_ever > held_before && gate::Gate::is_open();
        if (was_felt) works_until_ = ended + std::min<Clock::duration>(ended - *held_since, k_most_rest);
        const std::chrono::duration<double> pause = ended - *held_since;
        its_.report.longest_pause = std::max(its_.report.longest_pause, pause.count());
        if (piece.moved() > 0) limit_ = sleep::next_piece_limit(direction_, piece.bytes(), pause);
        return verdict;
    }

    /// Counts host memory: what pieces have `made` of it or left, and `more` that is about to be made.
    Result<void> count_host(Bytes made, Bytes more = 0) {
        return memory_.with_lock([&](LockedMemory& locked) {
            return guarded([&] { return locked.engine().count_host_backed(more, made); });
        });
    }

    /// What works on a device, ready for pieces: the same for all of them, but that it makes way for contexts
    /// that end. Errors: those of PrimaryContext::retain() and DeviceSession.
    Result<driver::DeviceSession*> session(int device) {
        if (registry::books().contexts.one_waits_to_end()) leave_contexts();
        if (!contexts_.owns_lock()) {
            registry::books().contexts.let_end();
            contexts_ = keep_contexts(true);
        }
        if (const auto known = sessions_.find(device); known != sessions_.end()) return known->second.get();
        const auto& api = memory_.api();
        auto context = GPU_SLEEP_TRY(driver::PrimaryContext::retain(api, device));
        auto session = GPU_SLEEP_TRY(driver::DeviceSession::open(api, std::move(context)));
        if (!session->has_own_stream())
            return make_error(ErrorCode::out_of_device_memory,
                              "GPU {} is full: no stream can be made to copy with while the program runs",
                              device);
        if (direction_ == Direction::to_host) GPU_SLEEP_TRY(reserve_fingerprints(*session));
        return (sessions_[device] = std::move(session)).get();
    }

    /// Which may wait for the program's work: outward beforehand, and inward in the first pause.
    Result<void> reserve_fingerprints(driver::DeviceSession& session) {
        const auto current = session.enter();
        GPU_SLEEP_TRY(current.check());
        return session.reserve_fingerprints(largest_ / driver::k_fingerprint_block_bytes);
    }

    /// Waits for what sessions have queued, and lets contexts end.
    void leave_contexts() noexcept {
        for (const auto& [ordinal, each] : sessions_) add_steps(ordinal, each->steps().times());
        sessions_.clear();
        if (contexts_.owns_lock()) contexts_.unlock();
    }

    void add_bytes(int ordinal, Bytes bytes) {
        auto& all = sleep::device_in(its_.report, ordinal);
        all.released += bytes;
        all.kept += bytes;
        moved_ += bytes;
    }

    void add_steps(int ordinal, const model::StepTimes& steps) noexcept {
        ignoring_errors([&] {
            auto& all = sleep::device_in(its_.report, ordinal);
            for (std::size_t i = 0; i < steps.size(); ++i) all.steps[i] += steps[i];
        });
    }

    /// Notes how much of the devices in use is free. Errors: driver_failed, context_lost.
    Result<void> note_memory(Bytes model::DeviceReport::*free) {
        const auto kept = keep_contexts(true);
        const auto& api = memory_.api();
        const auto contexts = GPU_SLEEP_TRY(driver::active_contexts(api));
        for (const auto& context : contexts) {
            if (!kinds_.contains(context.device())) continue;
            const driver::CurrentContext current(api, context.get());
            const auto memory = GPU_SLEEP_TRY(driver::memory_info(api));
            auto& all = sleep::device_in(its_.report, context.device());
            all.*free = memory.free;
            all.total = memory.total;
        }
        return {};
    }

    Operation& its_;
    const LiveUses& uses_;
    ProgramMemory& memory_;
    const sleep::Direction direction_;
    const Clock::time_point deadline_;
    const bool is_forced_;
    Joint alone_;
    std::map<int, driver::MemoryKind> kinds_;
    std::map<int, model::StepClock> clocks_;       ///< of what no session counts
    std::shared_lock<std::shared_mutex> contexts_; ///< as long as there are sessions
    std::map<int, std::unique_ptr<driver::DeviceSession>> sessions_;
    Bytes limit_;                         ///< of the next piece
    Bytes largest_ = sleep::k_most_piece; ///< that any piece may be
    /// Until when the program, which the last pause has held back, is left to its work: for as long. None
    /// where it did not wait, or still does, for what sleeps.
    std::optional<Clock::time_point> works_until_;
    Bytes stayed_ = 0;
    Bytes moved_ = 0;
};

} // namespace

Result<model::Report> move_out(const Ground& ground, const LiveUses& uses, const Inhibitors& inhibitors,
                               const model::LiveRequest& request, const server::Asking& asking) {
    if (inhibitors.now() && asking.asker == server::Asker::command && !request.ignore_inhibitors)
        return make_error(ErrorCode::inhibited, "sleeps are inhibited");
    Operation its(ground, asking.progress, request, model::Operation::sleep);
    const bool is_deep = GPU_SLEEP_TRY(its.begin(true));
    if (is_deep) return make_error(ErrorCode::refused, "it sleeps deeply, so nothing of it can run");
    const driver::RelaxedCaptureMode relaxed(ground.memory.api());
    LiveOperation move(its, uses, Direction::to_host, request, request.force);
    GPU_SLEEP_TRY(move.run(request.tags, request.bytes, request.dry_run));
    return its.reported();
}

Result<void> move_back(Operation& wake, const LiveUses& uses, const model::WakeRequest& request) {
    return LiveOperation(wake, uses, Direction::to_device, request, false)
        .run(request.tags, request.live_bytes, request.dry_run);
}

} // namespace gpu_sleep::agent::operations
