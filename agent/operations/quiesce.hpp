// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Getting the program quiet before a sleep: its captures ended, the gate shut and the device drained. And the
// gate as it has to be for a wake.

#pragma once

#include "operations/operation.hpp"

namespace gpu_sleep::agent::operations {

/// Each of its steps may fail; who asked for it settles the gate again then.
class Quiesce {
public:
    /// All outlive it. `torch_trim`: null where shut_gate() never trims.
    Quiesce(const Ground& ground, torch::TorchTrim* torch_trim, const server::ProgressSink& progress,
            Joint& joint, Clock::time_point deadline)
        : ground_(ground), torch_trim_(torch_trim), progress_(progress), joint_(joint), deadline_(deadline) {}

    /// Lets captures end, has PyTorch give back what it caches if `trims`, and closes the gate. Errors: those
    /// of Gate::close() and TorchTrim::run(); capture_in_progress, cancelled.
    [[nodiscard]] Result<void> shut_gate(bool trims);
    /// Errors: those of driver::drain() and Gate::wait_empty().
    [[nodiscard]] Result<void> drain();
    /// Where others sleep together with this one, waits until they are drained, too. Meanwhile lets through
    /// what they may wait for. Errors: those of Joint::wait_drained() and drain().
    [[nodiscard]] Result<void> await_others();

private:
    /// Holds new captures back and waits until those under way have ended. Errors: capture_in_progress, also
    /// if one waits for what sleeps already, and so for no sleep's end.
    [[nodiscard]] Result<void> end_captures();
    /// One submission after the other, as many as the gate holds, or come at once, until the device waits.
    [[nodiscard]] Result<void> let_through(std::uint32_t count);
    [[nodiscard]] bool keeps_going() const {
        ground_.giving_back.while_waiting();
        return progress_({model::Progress::Phase::drain, 0, 0});
    }
    /// keeps_going(), which also lets held touches through that the device seems to wait for: each at once
    /// when the command says so, where others sleep together with this one; else at its own judgement. Notes
    /// in `has_released` that it has.
    [[nodiscard]] std::function<bool()> keeps_coaxing(bool& has_released);

    const Ground& ground_;
    torch::TorchTrim* const torch_trim_;
    const server::ProgressSink& progress_;
    Joint& joint_;
    const Clock::time_point deadline_;
};

/// Whether a pause would hold back work that nothing holds back yet.
[[nodiscard]] bool pause_would_hold_work(const LockedMemory& locked) noexcept;

/// Holds every touch, and waits for those that a gate of a process in part asleep let through. Errors: those
/// of Gate::close().
[[nodiscard]] Result<void> shut_gate_to_wake(const server::ProgressSink& progress,
                                             Clock::time_point deadline);

} // namespace gpu_sleep::agent::operations
