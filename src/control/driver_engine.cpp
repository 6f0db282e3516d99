// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The steps of a sleep and a wake by the driver, and how the process stands after each.

#include "control/driver_engine.hpp"

#include "checkpoint/room.hpp"
#include "client/gpu_queue.hpp"
#include "control/checkpoint_record.hpp"
#include "control/need.hpp"
#include "model/unseen_libraries.hpp"

namespace gpu_sleep::control {
namespace {

using checkpoint::Kept;
using driver::Checkpoint;
using model::Operation;
using model::State;

/// The GPUs as NVML reports them; none, and the reason, if NVML cannot be asked.
struct Look {
    std::vector<driver::Gpu> gpus;
    std::string why_not;

    Look() {
        auto looked = driver::look_at_gpus();
        if (looked)
            gpus = *std::move(looked);
        else
            why_not = looked.error().message;
    }
};

/// Returns how much memory of each GPU `pid` uses, as far as NVML tells.
client::BytesByGpu used_by(pid_t pid, const Look& look) {
    client::BytesByGpu used;
    for (const auto& gpu : look.gpus)
        for (const auto& process : gpu.processes)
            if (process.pid == pid && process.bytes) used.emplace(gpu.uuid, *process.bytes);
    return used;
}

/// Returns how much a restore needs on each GPU that the process is known to use; on every GPU if none is
/// known.
client::BytesByGpu needs_of(const client::BytesByGpu& used, const Look& before, const Look& after) {
    client::BytesByGpu needs;
    for (const auto& gpu : after.gpus) {
        const auto known = used.find(gpu.uuid);
        const auto* const earlier = find_gpu(before.gpus, gpu.uuid);
        const Bytes more = earlier && gpu.free > earlier->free ? gpu.free - earlier->free : 0;
        const bool is_known = known != used.end();
        if (!is_known && !used.empty()) continue;
        const auto need =
            checkpoint::need_of_all(is_known ? std::optional(known->second) : std::nullopt, more);
        if (is_known || need != 0) needs[gpu.uuid] = need;
    }
    return needs;
}

/// A command that asks the driver about a stopped process would wait until that goes on. Errors: timed_out.
Result<void> check_not_stopped(const Process& process) {
    if (!ProcFs().is_stopped(process)) return {};
    return make_error(ErrorCode::stopped, "process {} is stopped, and does not answer the driver",
                      title(process));
}

/// The operation on one process.
class Run {
public:
    Run(const Process& process, const Command& command, Interruptions& interruptions)
        : process_(process), command_(command), interruptions_(interruptions) {}

    Answer answer() {
        if (::geteuid() != 0 && ::geteuid() != process_.uid)
            return make_error(ErrorCode::not_permitted,
                              "it belongs to {}: only its owner and root may control it",
                              user_name(process_.uid));
        // While those before it were asked, another may have been given its number.
        if (!ProcFs().is_running(process_)) return make_error(ErrorCode::no_process, "it has ended");
        GPU_SLEEP_TRY(check_not_stopped(process_));
        checkpoint_ = GPU_SLEEP_TRY(Checkpoint::load());
        engine_.emplace(*checkpoint_, process_.pid, Kept::nothing);
        record_ = GPU_SLEEP_TRY(CheckpointRecord::open(process_, terms_.timeout));
        auto answer = begin();
        if (is_awake_or_gone()) record_->remove();
        return answer;
    }

private:
    Answer begin() {
        const auto state = GPU_SLEEP_TRY(checkpoint_->state(process_.pid));
        if (state == checkpoint::State::failed)
            return failure(checkpoint::lost(checkpoint::k_failed_partway, Kept::nothing));
        if (state == checkpoint::State::checkpointed && record_->read().is_lost)
            return failure(checkpoint::lost(checkpoint::k_found_too_little, Kept::nothing));
        return wake_ ? wake(state) : sleep(state);
    }

    // ---- Sleeping

    Answer sleep(checkpoint::State state) {
        const Look before;
        const auto used = used_by(process_.pid, before);
        if (state == checkpoint::State::checkpointed) return report(State::asleep, false, {}, before, before);
        if (const auto mappings = read_small_file(fmt::format("/proc/{}/maps", process_.pid)))
            if (const auto why = model::why_not_restored(model::unseen_libraries(*mappings)); !why.empty())
                return make_error(ErrorCode::driver_failed, "{}", why);
        if (terms_.dry_run) return report(State::awake, true, used, before, before);
        if (auto locked = engine_->lock(terms_.timeout, state); !locked)
            return failure(std::move(locked).error());
        times_.drain = seconds_since(begin_);
        if (interruptions_.has_come())
            return undo(make_error(ErrorCode::cancelled, "the command was interrupted"));
        // Before the checkpoint, so that it is there whenever this command ends.
        if (!used.empty())
            if (auto written = record_->write({needs_of(used, before, before)}); !written)
                return undo(std::move(written).error());
        const auto copying = Clock::now();
        if (auto done = engine_->checkpoint(); !done) return failure(std::move(done).error());
        times_.transfer = seconds_since(copying);
        const Look after;
        const auto needs = needs_of(used, before, after);
        auto done = report(State::asleep, true, needs, before, after);
        if (auto written = record_->write({needs}); !written && !needs.empty())
            done.notes.push_back("the memory that it needs to wake could not be recorded: " +
                                 written.error().message);
        return done;
    }

    Answer undo(Error error) { return failure(engine_->undo(std::move(error))); }

    // ---- Waking

    Answer wake(checkpoint::State state) {
        const Look before;
        if (state == checkpoint::State::running) return report(State::awake, false, {}, before, before);
        auto needs = record_->read().needs;
        const bool restores = state == checkpoint::State::checkpointed;
        auto moves = plan_moves(restores, needs, before);
        if (!moves) return failure(std::move(moves).error());
        needs = moved(needs, *moves);
        if (terms_.dry_run) return rehearsal(restores, needs, before);
        if (restores) {
            // Before the look for room, after which others may take it.
            if (auto ready = initialise(before); !ready) return failure(std::move(ready).error());
            if (auto room = wait_for_room(needs); !room) return failure(std::move(room).error());
            if (auto restored = restore(*moves); !restored) return failure(std::move(restored).error());
        }
        times_.transfer = seconds_since(begin_);
        if (auto unlocked = engine_->unlock(); !unlocked) return failure(std::move(unlocked).error());
        auto done = report(State::awake, true, restores ? needs : client::BytesByGpu(), before, Look());
        if (!restores)
            done.notes.emplace_back(
                "an earlier command did not finish and had left it locked, with all its memory on the GPU");
        return done;
    }

    [[nodiscard]] model::Report rehearsal(bool restores, const client::BytesByGpu& needs,
                                          const Look& look) const {
        auto rehearsed = report(State::asleep, true, needs, look, look);
        if (!restores || command_.force) return rehearsed;
        const auto room = check_room(needs, {});
        if (room) return rehearsed;
        if (needs.empty() || wake_->wait == Milliseconds(0))
            refuse(rehearsed, room.error().message, room.error().code);
        else
            rehearsed.notes.push_back(room.error().message);
        return rehearsed;
    }

    /// The list for the driver; empty where nothing is to move. Errors: invalid_argument, driver_failed.
    Result<std::vector<GpuPair>> plan_moves(bool restores, const client::BytesByGpu& needs,
                                            const Look& look) {
        if (command_.moves.empty()) return std::vector<GpuPair>{};
        if (!restores)
            return make_error(ErrorCode::invalid_argument,
                              "it is locked but not checkpointed, so none of it can move: gpu-wake without "
                              "--gpu unlocks it");
        if (!look.why_not.empty())
            return make_error(ErrorCode::driver_failed, "cannot find out which GPUs there are ({})",
                              look.why_not);
        return plan_gpu_moves(command_.moves, look.gpus, needs);
    }

    Result<void> initialise(const Look& look) {
        const bool is_persistent =
            !look.gpus.empty() && std::ranges::all_of(look.gpus, &driver::Gpu::is_persistent);
        return is_persistent ? Result<void>() : checkpoint_->initialise();
    }

    Result<void> restore(const std::vector<GpuPair>& moves) {
        auto restored = engine_->restore(moves);
        if (restored) return restored;
        auto error = std::move(restored).error();
        if (error.code == ErrorCode::context_lost) {
            if (auto noted = record_->write({.is_lost = true}); !noted)
                error.message += "; the loss could not be recorded: " + noted.error().message;
        } else if (error.code != ErrorCode::invalid_argument) {
            error.message += "; if an earlier restore lacked GPU memory, the process is lost: end it";
        }
        return error;
    }

    /// Waits for as long as asked until there is room for all, and sets that aside. A restore that finds too
    /// little ends the process.
    Result<void> wait_for_room(const client::BytesByGpu& needs) {
        if (command_.force) {
            auto gpus = needs;
            if (gpus.empty())
                for (const auto& gpu : Look().gpus) gpus[gpu.uuid] = 0;
            lines_ = client::open_queues(record_->directory(), gpus);
            for (auto& line : lines_) static_cast<void>(line.lock()); // as far as they can be had
            return {};
        }
        if (needs.empty()) return check_room(needs, {}); // no time helps
        constexpr Milliseconds k_look_again{100};
        const auto deadline = Clock::now() + wake_->wait;
        for (;;) {
            const auto is_set_aside = set_room_aside(needs);
            if (is_set_aside && *is_set_aside) return {};
            const auto now = Clock::now();
            if (!is_set_aside && now >= deadline) return with_holders(is_set_aside.error(), needs);
            if (now >= deadline + terms_.timeout)
                return make_error(ErrorCode::out_of_device_memory,
                                  "another process is waking on the same GPU, and did not finish in time");
            if (interruptions_.has_come())
                return make_error(ErrorCode::cancelled, "the command was interrupted");
            std::this_thread::sleep_for(k_look_again);
        }
    }

    /// Sets aside what `needs` says, as the owner's agents do while they come back from deep sleeps. False:
    /// somebody else is in the way, and may be done soon. Errors: those of check_room().
    Result<bool> set_room_aside(const client::BytesByGpu& needs) {
        lines_ = client::open_queues(record_->directory(), needs);
        std::vector<client::GpuQueue*> lines;
        for (auto& line : lines_) lines.push_back(&line);
        const auto of_others = client::begin_counting(lines);
        if (!of_others) return false;
        const auto checked = check_room(needs, *of_others);
        return client::end_counting(lines, *of_others,
                                    checked ? Result<client::BytesByGpu>(needs) : checked.error());
    }

    static Result<void> check_room(const client::BytesByGpu& needs, const client::BytesByGpu& of_others) {
        if (needs.empty())
            return make_error(
                ErrorCode::driver_failed,
                "its need for GPU memory is not known, and a restore that finds too little cannot be "
                "undone; make sure that there is enough, then use gpu-wake --force");
        const Look look;
        if (!look.why_not.empty())
            return make_error(ErrorCode::driver_failed,
                              "cannot find out whether the GPU has room ({}); make sure that there is "
                              "enough, then use gpu-wake --force",
                              look.why_not);
        for (const auto& [uuid, bytes] : needs) {
            const auto* const gpu = find_gpu(look.gpus, uuid);
            if (!gpu)
                return make_error(ErrorCode::driver_failed, "the GPU that it was on, {}, is not there", uuid);
            const auto free = checkpoint::free_besides(of_others, uuid, gpu->free);
            if (free < bytes)
                return make_error(ErrorCode::out_of_device_memory, "it needs {} on GPU {}, {} free",
                                  format_bytes(bytes), gpu->index, format_bytes(free));
        }
        return {};
    }

    // ---- What is said

    /// Has an error of too little GPU memory say who has it.
    [[nodiscard]] Error with_holders(Error error, const client::BytesByGpu& needs) const {
        if (error.code != ErrorCode::out_of_device_memory) return error;
        Neighbours neighbours;
        const auto holders = holders_beside(neighbours, process_, false, {}, needs);
        if (!holders.text.empty()) error.message += "; " + holders.text;
        return error;
    }

    [[nodiscard]] std::optional<checkpoint::State> stands() const {
        const auto state = checkpoint_->state(process_.pid);
        return state ? std::optional(*state) : std::nullopt;
    }

    /// Whether nobody needs the record any more; not where the driver does not say.
    [[nodiscard]] bool is_awake_or_gone() const {
        const auto state = checkpoint_->state(process_.pid);
        if (!state) return state.error().code == ErrorCode::no_process;
        return *state != checkpoint::State::locked && *state != checkpoint::State::checkpointed;
    }

    /// `error`, and how the process stands after it.
    [[nodiscard]] Answer failure(Error error) const {
        const auto now = stands();
        if (!now) return error; // it has ended, most likely: `error` says so, or what came before it
        if (now == checkpoint::State::running)
            error.message += "; it is awake as before";
        else if (now == checkpoint::State::locked)
            error.message += "; it is locked: gpu-wake unlocks it";
        return model::Failure{std::move(error),
                              now == checkpoint::State::running ? State::awake : State::asleep};
    }

    [[nodiscard]] model::Report report(State state, bool changed, const client::BytesByGpu& moved,
                                       const Look& before, const Look& after) const {
        model::Report report;
        report.operation = wake_ ? Operation::wake : Operation::sleep;
        report.dry_run = terms_.dry_run;
        report.changed = changed && !terms_.dry_run;
        report.pid = process_.inner_pid;
        report.state = state;
        report.times = times_;
        report.times.total = seconds_since(begin_);
        for (const auto& now : after.gpus) {
            const auto its = moved.find(now.uuid);
            const auto* const then = find_gpu(before.gpus, now.uuid);
            if (its == moved.end() || !then) continue;
            const auto bytes = its->second;
            report.devices.push_back({now.index, now.name, bytes, bytes, 0, then->free, now.free, now.total});
            report.devices.back().uuid = now.uuid;
            report.host_bytes += state == State::asleep ? bytes : 0;
        }
        if (changed && !after.why_not.empty())
            report.notes.push_back("the amount of memory is not known: " + after.why_not);
        return report;
    }

    const Process& process_;
    const Command& command_;
    const model::Terms& terms_ = *model::terms_in(command_.request);
    const model::WakeRequest* const wake_ = std::get_if<model::WakeRequest>(&command_.request);
    Interruptions& interruptions_;
    std::optional<Checkpoint> checkpoint_;
    std::optional<checkpoint::Steps> engine_; ///< that drives checkpoint_
    std::optional<CheckpointRecord> record_;
    std::vector<client::GpuQueue> lines_; ///< with room set aside, until this dies
    model::PhaseTimes times_;
    const Clock::time_point begin_ = Clock::now();
};

/// The process stays asleep, though not deeply, as its agent has left it. So this is no timeout.
Error not_deeply(Error error) {
    if (error.code == ErrorCode::context_lost) return error;
    if (error.code != ErrorCode::not_permitted && error.code != ErrorCode::no_driver)
        error.code = ErrorCode::driver_failed;
    error.message = "it is asleep, but not deeply: " + error.message;
    return error;
}

} // namespace

Answer run_by_driver(const Process& process, const Command& command, Interruptions& interruptions) {
    return Run(process, command, interruptions).answer();
}

// Deferred where the system has no thread left: the first step loads it, if it gets a thread.
DeepLocker::DeepLocker()
    : loaded_(std::async(std::launch::async | std::launch::deferred, [] { return Checkpoint::load(); })) {}

std::vector<std::function<Result<void>()>> DeepLocker::steps(const Process& process,
                                                             Milliseconds timeout) const {
    const auto step = [loaded = loaded_, pid = process.pid](auto take) {
        return [=]() -> Result<void> {
            const auto& driver = loaded.get();
            if (!driver) return not_deeply(driver.error());
            auto taken = take(checkpoint::Steps(*driver, pid, Kept::by_agent));
            return taken ? taken : not_deeply(std::move(taken).error());
        };
    };
    return {step([timeout](const checkpoint::Steps& engine) { return engine.lock(timeout); }),
            step([](const checkpoint::Steps& engine) { return engine.checkpoint(); })};
}

Result<checkpoint::State> state_by_driver(const Process& process) {
    GPU_SLEEP_TRY(check_not_stopped(process));
    auto loaded = GPU_SLEEP_TRY(Checkpoint::load());
    return loaded.state(process.pid);
}

} // namespace gpu_sleep::control
