// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep from the request to the answer.

#pragma once

#include "base/error.hpp"
#include "model/model.hpp"
#include "operations/giving_back.hpp"
#include "operations/joint.hpp"
#include "operations/parts.hpp"
#include "operations/turn.hpp"
#include "server/request_queue.hpp"

#include <optional>
#include <string>

namespace gpu_sleep::agent::operations {

class Idleness;

/// One sleep, run once, on the operations thread.
class SleepOperation {
public:
    /// `idleness`: what the sleep is for, if it is for that alone.
    SleepOperation(Parts& parts, const model::SleepRequest& request, const server::ProgressSink& progress,
                   Joint& joint, server::Asker asker, Idleness* idleness = nullptr);
    SleepOperation& operator=(SleepOperation&&) = delete;
    ~SleepOperation() { parts_.deep.end_looks(); }

    /// Errors: those of Turnstile::enter(), Quiesce::run(), Transactions::sleep() and Joint::wait_ready():
    /// all is awake that was, but for what could not be mapped again; no_process (it is ending); cancelled
    /// also where the idleness does not last.
    [[nodiscard]] Result<model::Report> run();

private:
    /// What may help after a shortage; each is tried once, in this order, and then the sleep again.
    struct Remedy {
        ErrorCode shortage;
        /// False: there was nothing to do.
        bool (SleepOperation::*apply)();
    };
    static const Remedy k_remedies[];
    /// What the last wake left to be given back, was freed since, or is retained of what does not sleep now,
    /// may be what is missing.
    bool give_unneeded_back();
    /// The same of all that is retained.
    bool give_memory_back() { return give_back_all(parts_); }
    bool give_files_back();
    /// If the request allows it: what host memory has no room for goes to files, or else all of it.
    bool spill_rest();
    bool turn_to_files();
    [[nodiscard]] bool may_spill() const noexcept {
        return request_.spill &&
               (scope_ == sleep::Transactions::Scope::all || (request_.deep && !names_store()));
    }

    /// Refuses a request from outside while sleeps are inhibited, and only says so in a dry run. Errors:
    /// inhibited.
    [[nodiscard]] Result<void> check_consent();
    /// Refuses what only a gate could keep where the program's calls pass none. Errors: driver_failed.
    [[nodiscard]] Result<void> check_touches() const;
    /// Why it is too early to sleep again (SleepRequest::min_awake); empty: it is not.
    [[nodiscard]] std::string why_too_early() const;

    /// Whether the program itself asks: then no inhibitor stands in its way.
    [[nodiscard]] bool is_own() const noexcept { return who_asks_ == server::Asker::program; }
    /// Whether it names a store for contents that sleep already.
    [[nodiscard]] bool names_store() const noexcept {
        return request_.store_is_named || !request_.stores.empty();
    }
    /// Whether it names files, and files alone.
    [[nodiscard]] bool moves_to_files() const noexcept;
    /// Of a process that sleeps deeply, or that the driver has lost. Errors: as run().
    [[nodiscard]] Result<void> change_deep_contents();
    /// All of a request to such a process: copies are given up or go to files, and it is said how touches are
    /// met.
    [[nodiscard]] Result<model::Report> stay_deep();
    /// Where a deep sleep is asked for, whether it could be; a dry run only says so. Errors: those of
    /// DeepSleep::check().
    [[nodiscard]] Result<void> check_deep();
    /// Where that is asked for, has the driver take the rest. Errors: those of DeepSleep::begin().
    [[nodiscard]] Result<void> go_deep();
    /// From the turn to the end of the sleep that the agent makes.
    [[nodiscard]] Result<void> fall_asleep();
    /// How the asker follows the transaction.
    [[nodiscard]] sleep::Control control();
    /// Gets the program quiet, and moves contents. Where the driver fails in taking out what sleeps in its
    /// own memory, moves the copies alone, with a note.
    [[nodiscard]] Result<void> move_contents();
    /// As often as remedies allow.
    [[nodiscard]] Result<void> attempt_with_remedies();
    [[nodiscard]] Result<void> attempt() noexcept;
    /// Where nothing is moved, this is the point of no return.
    [[nodiscard]] Result<void> pass_without_moving();
    /// Where that is asked for, and the program is quiet for it. Returns whether it is paused by that.
    [[nodiscard]] bool pause() noexcept;
    /// As LockedMemory::adopt_touch_rule().
    [[nodiscard]] bool adopt_touch_rule(LockedMemory& locked, const model::SleepRequest& request,
                                        bool adds_to_sleep);
    /// Does what the request says of all that sleeps, whichever request put it to sleep.
    void apply_to_sleepers();

    Parts& parts_;
    const model::SleepRequest& request_;
    const server::ProgressSink& asker_;
    const server::ProgressSink
        progress_; ///< the asker's; what was to sleep for being idle goes on while it is
    Joint& joint_;
    const server::Asker who_asks_;
    Idleness* const idleness_;
    const Clock::time_point start_ = Clock::now();
    const Clock::time_point deadline_;
    sleep::Transactions::Scope scope_ = sleep::Transactions::Scope::all;
    sleep::Transactions::Spill spill_ = sleep::Transactions::Spill::nothing;
    std::optional<model::SleepRequest> spilled_; ///< the request as it is carried out with files instead
    model::Report report_;
    Callbacks::Jobs owed_; ///< if the sleep does not come
    Bytes asleep_before_ = 0;
    bool was_paused_ = false;
};

/// A sleep that is only for what is idle, on the operations thread. A process that is not idle as asked, or
/// works again before the point of no return, is reported unchanged, with a note that says why. Errors: those
/// of SleepOperation::run().
[[nodiscard]] Result<model::Report> sleep_if_idle(Parts& parts, const model::IdleSleepRequest& request,
                                                  const server::ProgressSink& progress, Joint& joint,
                                                  server::Asker asker);

} // namespace gpu_sleep::agent::operations
