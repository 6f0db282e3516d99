// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Getting the program quiet before a sleep: its callbacks asked, the gate shut, its captures ended and the
// device drained. And the gate as it has to be for a wake.

#pragma once

#include "base/error.hpp"
#include "model/model.hpp"
#include "operations/giving_back.hpp"
#include "operations/joint.hpp"
#include "operations/parts.hpp"
#include "server/request_queue.hpp"
#include "sleep/transactions.hpp"

#include <functional>
#include <string>
#include <vector>

namespace gpu_sleep::agent::operations {

/// The steps before a sleep, each of which may fail; who asked for it settles the gate again then.
class Quiesce {
public:
    Quiesce(Parts& parts, const model::SleepRequest& request, const server::ProgressSink& progress,
            Joint& joint, Clock::time_point deadline, model::Report& report)
        : parts_(parts), request_(request), progress_(progress), joint_(joint), deadline_(deadline),
          report_(report) {}

    using Scope = sleep::Transactions::Scope;

    /// Takes all steps. Where nothing is to go to sleep or to be paused, narrows `scope`, unless it is a dry
    /// run, and does nothing but hold work back where what sleeps is taken out of its own memory. What
    /// callbacks are owed if the sleep does not come is added to `owed`. Both also before a failure. Errors:
    /// those of plan_sleep(), Callbacks::run_before_sleep(), Gate::close(), driver::drain() and
    /// Joint::wait_drained(); unseen_library, io_failed, capture_in_progress, cancelled, timed_out.
    [[nodiscard]] Result<void> run(Callbacks::Jobs& owed, Scope& scope);

private:
    /// What the sleep would do: what callbacks are told of it, with no tags where all of it sleeps already.
    struct Preview {
        Event event;
        std::vector<std::string> still_kept; ///< as SleepPlan has it
        bool is_empty = true;                ///< nothing goes to sleep or is paused; what sleeps may move
        bool takes_out = false;              ///< of that, some from its own memory
        bool pauses_besides = false;         ///< it would be paused, and something sleeps already
    };
    [[nodiscard]] Result<Preview> preview(Scope scope) const;
    [[nodiscard]] bool pauses() const noexcept { return request_.level == model::Level::pause; }
    /// Refuses a sleep, unless forced, while a library is loaded whose work no gate holds, or once the
    /// program has called an entry point of the driver that this build does not know; notes it otherwise.
    /// Only where all the program's work is intercepted: a program that hands its memory over promises by
    /// itself to leave it alone. Errors: unseen_library, io_failed.
    [[nodiscard]] Result<void> check_unseen();
    /// The same of what was called for the first time just before the gate was shut.
    [[nodiscard]] Result<void> check_late_calls() const;
    [[nodiscard]] Result<void> run_callbacks(const Event& event, Callbacks::Jobs& owed);
    /// Lets captures end, has PyTorch give back what it caches if that `trims`, and closes the gate.
    [[nodiscard]] Result<void> shut_gate(bool trims);
    /// Holds new captures back and waits until those under way have ended.
    [[nodiscard]] Result<void> end_captures();
    /// Errors: capture_in_progress, if a capture waits for what sleeps already, and so for no sleep's end.
    [[nodiscard]] Result<void> check_captures_may_end() const;
    [[nodiscard]] Result<void> drain();
    /// Where others sleep together with this one, waits until they are drained, too. Meanwhile lets through
    /// what they may wait for.
    [[nodiscard]] Result<void> await_others();
    /// One submission after the other, as many as the gate holds, or come at once, until the device waits.
    [[nodiscard]] Result<void> let_through(std::uint32_t count);
    [[nodiscard]] bool keeps_going() const {
        give_way_while_waiting(parts_);
        return progress_({model::Progress::Phase::drain, 0, 0});
    }
    /// keeps_going(), which also lets held touches through that the device seems to wait for: each at once
    /// when the command says so, where others sleep together with this one; else at its own judgement. Notes
    /// in `has_released` that it has.
    [[nodiscard]] std::function<bool()> keeps_coaxing(bool& has_released);

    Parts& parts_;
    const model::SleepRequest& request_;
    const server::ProgressSink& progress_;
    Joint& joint_;
    const Clock::time_point deadline_;
    model::Report& report_;
};

/// Holds every touch, and waits for those that a gate of a process in part asleep let through. Errors: those
/// of Gate::close().
[[nodiscard]] Result<void> shut_gate_to_wake(const server::ProgressSink& progress,
                                             Clock::time_point deadline);

} // namespace gpu_sleep::agent::operations
