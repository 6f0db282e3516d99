// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One sleep, step by step. Internal to this module.

#pragma once

#include "contents/progress.hpp"
#include "contents/save.hpp"
#include "driver/api.hpp"
#include "ledger/ledger.hpp"
#include "sleep/per_device.hpp"

namespace gpu_sleep::sleep {

/// One device's part of a sleep.
struct DeviceSleep {
    std::vector<Run> runs; ///< of what is awake, then those that are taken out
    model::DeviceReport report;
    std::unique_ptr<driver::DeviceSession> session;
};

/// Prepares (copies and seals) and commits (unmaps and releases) a sleep. Until commit() any failure leaves
/// all memory mapped with its contents. From its first unmap on there is no way back: what processes share
/// may already sleep elsewhere.
class SleepTransaction {
public:
    /// All outlive it. `looks_for_room`: it fails before it copies anything if host memory has no room now.
    SleepTransaction(const driver::Api& api, contents::Contents& contents, const SleepPlan& plan,
                     contents::SaveOptions options, bool looks_for_room = false)
        : api_(api), contents_(contents), plan_(plan), looks_for_room_(looks_for_room),
          save_(contents, std::move(options), plan.devices.size()) {}
    SleepTransaction(const SleepTransaction&) = delete;
    SleepTransaction& operator=(const SleepTransaction&) = delete;
    /// Memory that it has mapped to take it out, and has not taken out, sleeps as before; it is unmapped
    /// where the driver does that.
    ~SleepTransaction();

    /// Errors: out_of_host_memory, out_of_disk, io_failed, driver_failed, context_lost, cancelled, timed_out.
    [[nodiscard]] Result<void> prepare(const contents::Control& control);
    /// All sleeps. What the driver does not unmap or release then keeps its memory until the wake. Errors: of
    /// files that are to stay and cannot be named; everything is still mapped. Where others have gone on,
    /// `goes_on`, that is only noted.
    [[nodiscard]] Result<void> commit(bool goes_on) noexcept;
    /// Adds what was done on each device, and a note of what could not be released.
    void describe(model::Report& report) const;

private:
    /// Waits for what others of the user's processes retain, where all may hold no more together; then looks
    /// whether there is room, where that is asked for.
    [[nodiscard]] Result<void> find_room(contents::ProgressCounter& progress) const;
    void forget_kept() noexcept;
    void unmap_all() noexcept;
    /// It sleeps, and its memory holds its contents.
    void stay_in_place(ledger::Backing& backing) noexcept;
    void drop(ledger::Backing& backing) noexcept;
    void give_up(ledger::Backing& backing) noexcept;
    /// False where the driver fails; that is counted.
    bool release(ledger::Backing& backing) noexcept;
    void release(DeviceSleep& device) noexcept;

    const driver::Api& api_;
    contents::Contents& contents_;
    const SleepPlan& plan_;
    const bool looks_for_room_;
    std::vector<Drafted> drafted_;
    contents::Save save_; // outlives the sessions
    std::vector<DeviceSleep> devices_;
    std::size_t unreleased_ = 0;
    Result<void> not_kept_; ///< why files that are to stay may be removed
};

} // namespace gpu_sleep::sleep
