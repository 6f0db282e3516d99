// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One try of a wake from the request to the answer.

#pragma once

#include "base/error.hpp"
#include "model/model.hpp"
#include "operations/joint.hpp"
#include "operations/parts.hpp"
#include "server/request_queue.hpp"
#include "sleep/transactions.hpp"

#include <memory>
#include <string>
#include <vector>

namespace gpu_sleep::agent::operations {

/// One wake, tried once, on the operations thread. Where it has an order, one part after another.
class WakeOperation {
public:
    /// `since`: when it was asked for.
    WakeOperation(Parts& parts, const model::WakeRequest& request, const server::ProgressSink& progress,
                  Joint& joint, Clock::time_point since);

    /// Errors: those of Turnstile::enter(), Gate::close(), Transactions::check_free_memory() and
    /// Transactions::wake(): all that slept still does; of Woken::left: some of it; those of
    /// Joint::wait_ready(); no_process (it is ending); invalid_argument (joint, and in an order; to other
    /// GPUs, and not from a deep sleep).
    [[nodiscard]] Result<model::Report> run();

private:
    /// Whether the process has none of the tags, and no pause ends: that of a deep sleeper ends when it
    /// wakes.
    [[nodiscard]] bool is_for_others(bool is_deep) const;
    /// All of a dry run in a deep sleep: what can be told without the driver.
    [[nodiscard]] Result<model::Report> rehearse_deep();
    /// Brings back what the driver has taken in a deep sleep. Errors: those of DeepSleep::find_room(),
    /// DeepSleep::end() and GpuLines::wait_for_room().
    [[nodiscard]] Result<void> end_deep();
    /// All from where the driver is within reach.
    [[nodiscard]] Result<model::Report> wake_all();
    /// Wakes one part: all that `part` names, at once. Errors: as run().
    [[nodiscard]] Result<void> wake(const model::WakeRequest& part);
    /// Whether a wake could be begun now: without room nothing is, so that the program hears nothing of a
    /// wake that is tried often. Errors: those of Transactions::check_free_memory().
    [[nodiscard]] Result<void> check_free_memory(const model::WakeRequest& part);
    [[nodiscard]] Result<sleep::Woken> attempt(const model::WakeRequest& part, model::Report& report);
    void run_callbacks(sleep::Woken& woken, model::Report& report);
    /// Adds what a part has done.
    void add(model::Report&& part);
    /// For whoever asks how long another wake would take.
    void note_speed();
    /// Of what runs from host memory, as much as was asked for. Errors: those of LiveOperation::run().
    [[nodiscard]] Result<void> bring_back_live();
    /// Files that could not be removed, and how all stands.
    void complete_report();

    Parts& parts_;
    const model::WakeRequest& request_;
    const server::ProgressSink& progress_;
    Joint& joint_;
    const Clock::time_point start_ = Clock::now();
    const Clock::time_point deadline_; ///< of this try
    model::Report report_;
    /// After a deep sleep: kept until all is mapped, or others might count on the room.
    GpuLines::Room room_;
    Bytes from_place_ = 0;           ///< of what woke, what was only mapped
    std::vector<std::string> woken_; ///< tags of the order, by parts that are done
    /// What callbacks take comes first: once memory is awake they must run.
    std::shared_ptr<Event> event_;
    Callbacks::Jobs jobs_;
};

/// A wake that no other process takes part in. Errors: those of WakeOperation::run().
[[nodiscard]] Result<model::Report> wake_alone(Parts& parts, const model::WakeRequest& request,
                                               const server::ProgressSink& progress, Clock::time_point since);

} // namespace gpu_sleep::agent::operations
