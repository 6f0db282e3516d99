// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One wake, step by step. Internal to this module.

#pragma once

#include "contents/restore.hpp"
#include "driver/api.hpp"
#include "driver/context.hpp"
#include "driver/memory.hpp"
#include "ledger/ledger.hpp"
#include "sleep/per_device.hpp"

namespace gpu_sleep::sleep {

/// One device's part of a wake.
struct DeviceWake {
    std::vector<Run> runs; ///< those with contents to bring back first, so that copying starts at once
    Bytes lead = 0;        ///< how much of them is mapped before the first copy
    Bytes spare = 0;       ///< free memory that the wake does not need
    std::vector<ledger::Backing*> opened; ///< backings that this wake gave memory or a mapping
    contents::Failures failures;          ///< of kept ranges
    model::DeviceReport report;
    std::unique_ptr<driver::DeviceSession> session;
};

/// Prepares (creates, maps, fills, verifies) and commits (forgets what was kept) a wake. Until commit(),
/// which cannot fail, undo() takes everything back and the contents are still kept. Tags that turn out to be
/// spoiled are taken back alone, by commit().
class WakeTransaction {
public:
    /// All outlive it.
    WakeTransaction(const driver::Api& api, contents::Contents& contents) noexcept
        : api_(api), contents_(contents) {}

    /// Errors: out_of_device_memory, driver_failed, context_lost, cancelled, those of `fetch`; call undo()
    /// after each.
    [[nodiscard]] Result<void> prepare(const WakePlan& plan, const contents::Control& control,
                                       const Fetch& fetch);
    /// The tags that stay asleep, known once prepare() is done.
    [[nodiscard]] const Spoiled& spoiled() const noexcept { return spoiled_; }
    /// Spoiled tags sleep again, and what of them is damaged is marked. All others are awake.
    void commit();
    /// Returns whether its copies are known to have ended.
    [[nodiscard]] bool undo();
    /// Whether commit() woke anything.
    [[nodiscard]] bool has_changed() const noexcept;
    void describe(model::Report& report) const;

private:
    [[nodiscard]] Result<void> open(DeviceWake& device, const WakePlan& plan);
    [[nodiscard]] Result<void> bring_back(DeviceWake& device, contents::ProgressCounter& progress);
    struct Kinds {
        driver::MemoryKind gpu;
        driver::MemoryKind host; ///< where something wakes there
    };
    [[nodiscard]] Result<Kinds> kinds_of(int device) const;
    [[nodiscard]] Result<void> map_run(DeviceWake& device, const Kinds& kinds, const Run& run);
    [[nodiscard]] Result<void> fill_run(DeviceWake& device, const Run& run, contents::Restore& restore);
    /// Tags whose ranges could not all be brought back, with the reason.
    void note_spoiled(const DeviceWake& device);
    /// Takes the memory of `opened` back, and returns how much; what cannot be unmapped keeps it, and the
    /// next wake fills it.
    Bytes close(const std::vector<ledger::Backing*>& opened);
    void take_back_spoiled(DeviceWake& device);

    const driver::Api& api_;
    contents::Contents& contents_;
    std::vector<DeviceWake> devices_;
    std::vector<ledger::Backing*> imports_;
    std::set<const ledger::Backing*> to_host_; ///< of the plan
    Bytes room_to_retain_ = 0;                 ///< while the last of it was copied
    Spoiled spoiled_;                          ///< on any device
};

/// Errors: out_of_device_memory, if `plan` takes more of `device` than is free.
[[nodiscard]] Result<void> check_free_memory(const WakePlan& plan, int device,
                                             const driver::MemoryInfo& memory);

} // namespace gpu_sleep::sleep
