// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One wake, step by step. Internal to this room.

#pragma once

#include "sleep/transfer.hpp"

#include <map>
#include <memory>
#include <vector>

namespace gpu_sleep::sleep {

/// One device's part of a wake.
struct DeviceWake {
    struct KeptBlock {
        ledger::Backing* backing;
        Copy copy; ///< the same bytes in the arena
        driver::Fingerprint seal;
    };
    int device = 0;
    std::vector<Run> runs; ///< those with contents to bring back first, so that copying starts at once
    std::vector<ledger::Backing*> opened; ///< backings that this wake gave memory or a mapping
    std::vector<driver::FingerprintBlock> blocks;
    std::vector<KeptBlock> kept; ///< one for each of `blocks`
    std::vector<ledger::Backing*> damaged;
    model::DeviceReport report;
    std::unique_ptr<driver::DeviceSession> session;
};

/// Prepares (creates, maps, fills, verifies) and commits (gives the vaults up) a wake. Until commit(), which
/// cannot fail, undo() takes everything back and the contents are still in their vaults.
class WakeTransaction {
public:
    WakeTransaction(const driver::Api& api, Vaults& vaults) noexcept : api_(api), vaults_(vaults) {}

    /// Errors: out_of_device_memory, damaged (the backings are marked), driver_failed, context_lost,
    /// cancelled; call undo() after each.
    [[nodiscard]] Result<void> prepare(const WakePlan& plan, const Control& control);
    void commit();
    void undo();
    void describe(model::Report& report) const;

private:
    [[nodiscard]] Result<void> open(DeviceWake& device, const std::vector<ledger::Backing*>& backings);
    [[nodiscard]] Result<void> bring_back(DeviceWake& device, ProgressCounter& progress);
    [[nodiscard]] Result<void> map_run(DeviceWake& device, const driver::MemoryKind& kind, const Run& run);
    [[nodiscard]] Result<void> fill_run(DeviceWake& device, const Run& run, ProgressCounter& progress);
    [[nodiscard]] Result<void> verify(DeviceWake& device);
    [[nodiscard]] Result<std::vector<std::size_t>> find_damage(DeviceWake& device,
                                                               const std::vector<std::size_t>& indices);

    const driver::Api& api_;
    Vaults& vaults_;
    std::vector<DeviceWake> devices_;
};

} // namespace gpu_sleep::sleep
