// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Shared by sleeps, wakes and moves: a session on each device, one job for each side by side, and the figures
// of a device in reports.

#pragma once

#include "contents/progress.hpp"
#include "driver/device_session.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"
#include "sleep/plan.hpp"

namespace gpu_sleep::sleep {

/// A session in the primary context of the device of `report`. Notes the device's memory there, as it is
/// before the transaction. `needed`: bytes that the transaction will create there; where they only just fit,
/// the session takes no memory for streams. Errors: those of PrimaryContext::retain() and
/// DeviceSession::open().
[[nodiscard]] Result<std::unique_ptr<driver::DeviceSession>>
open_session(const driver::Api& api, model::DeviceReport& report, Bytes needed = 0);

/// Adds what was done on one device, and how long each step of it took.
void add_report(model::Report& report, const model::DeviceReport& device, driver::DeviceSession& session);

/// Maps the memory of `backing`, unless it is mapped: an earlier sleep or wake could not be undone wholly.
/// Errors: driver_failed.
[[nodiscard]] Result<void> map_memory(const driver::Api& api, ledger::Backing& backing);
/// Does so for all of `run`, and grants access to it.
[[nodiscard]] Result<void> map_all(const driver::Api& api, const Run& run);
/// Unmaps the memory of `backing`, if it is mapped. Errors: driver_failed; it is mapped still.
[[nodiscard]] Result<void> unmap_memory(const driver::Api& api, ledger::Backing& backing);
/// Unmaps and releases the memory of `backing`, if it has any: its contents are elsewhere, or given up.
/// Errors: driver_failed; what has not gone is the backing's still.
[[nodiscard]] Result<void> release_memory(const driver::Api& api, ledger::Backing& backing);

/// Whether the GPU has more free memory once the backing, which is awake, is released: what is imported
/// counts with its owner.
[[nodiscard]] inline bool frees_gpu(const ledger::Backing& backing) noexcept {
    return !backing.host_backed && !backing.imported;
}

/// The part of `report` that tells of `device`, which is made where it is missing.
[[nodiscard]] model::DeviceReport& device_in(model::Report& report, int device);

/// Counts `stored` bytes, which are in the report of `device` as what a sleep stores, as moved: they slept.
void add_taken_out(model::Report& report, int device, Bytes stored);

/// Runs `job(state)` for every state, each on a thread of its own when there are several. When one fails the
/// progress counter is stopped. Returns the first error that is not `cancelled`, or else the first.
template <class State, class Job>
[[nodiscard]] Result<void> run_side_by_side(std::vector<State>& states, contents::ProgressCounter& progress,
                                            Job&& job);

/// Returns the first error other than `cancelled`, which only follows from another error.
[[nodiscard]] Result<void> first_cause(std::vector<Result<void>>& results);

/// Work on a thread of its own, or on the caller's where there is none to be had. The end waits for it.
class Beside {
public:
    Beside(const char* name, const std::function<void()>& work) {
        if (auto thread = guarded([&] { return start_quiet_thread(name, work); }))
            thread_ = *std::move(thread);
        else
            work();
    }
    Beside(Beside&&) noexcept = default;
    ~Beside() { wait(); }
    void wait() {
        if (thread_.joinable()) thread_.join();
    }

private:
    std::thread thread_;
};

template <class State, class Job>
Result<void> run_side_by_side(std::vector<State>& states, contents::ProgressCounter& progress, Job&& job) {
    std::vector<Result<void>> results(states.size());
    const auto run = [&](std::size_t i) {
        results[i] = guarded([&] { return job(states[i]); });
        if (!results[i]) progress.stop();
    };
    std::vector<Beside> others;
    others.reserve(states.size()); // once one runs, nothing here may throw
    for (std::size_t i = 1; i < states.size(); ++i)
        others.emplace_back("gpu-sleep-move", [&run, i] { run(i); });
    if (!states.empty()) run(0);
    others.clear();
    return first_cause(results);
}

} // namespace gpu_sleep::sleep
