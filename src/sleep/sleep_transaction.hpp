// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One sleep, step by step. Internal to this module.

#pragma once

#include "sleep/file_transfer.hpp"
#include "sleep/transfer.hpp"

#include <memory>
#include <vector>

namespace gpu_sleep::sleep {

/// A vault in the making: the contents of one tag on one device.
struct VaultDraft {
    struct Extent {
        ledger::Backing* backing;
        ledger::KeptExtent place;
    };
    ledger::TagId tag = 0;
    bool to_file = false;
    Bytes bytes = 0; ///< in an arena
    std::uint64_t seals = 0;
    std::vector<Extent> extents;
    Vault vault;
};

/// One device's part of a sleep. The session is destroyed first: its copies must end before their arenas do.
struct DeviceSleep {
    int device = 0;
    DeviceSleepPlan plan;
    std::vector<VaultDraft> drafts;
    std::unique_ptr<Staging> staging;             ///< if any draft goes to a file
    std::vector<driver::FingerprintBlock> blocks; ///< of all drafts, in order
    std::vector<Run> runs;
    std::vector<bool> unmapped; ///< for each run
    model::DeviceReport report;
    std::unique_ptr<driver::DeviceSession> session;
};

/// Where a sleep keeps contents: a store for each tag, and the directory of the files.
struct Keeping {
    std::function<bool(ledger::TagId)> to_file = [](ledger::TagId) { return false; };
    std::function<std::string(ledger::TagId)> name;            ///< of the tag
    std::shared_ptr<const store::SnapshotDirectory> directory; ///< null when nothing goes to a file
    bool keeps_files = false;
};

/// Prepares (copies and seals) and commits (unmaps and releases) a sleep. Until commit() has unmapped
/// everything, any failure leaves all memory mapped with its contents.
class SleepTransaction {
public:
    SleepTransaction(const driver::Api& api, store::Pinner& pinner, Vaults& vaults,
                     const Engine::Options& options, Keeping keeping) noexcept
        : api_(api), pinner_(pinner), vaults_(vaults), options_(options), keeping_(std::move(keeping)) {}

    [[nodiscard]] Result<void> prepare(const SleepPlan& plan, const Control& control);
    /// Errors: out_of_host_memory, out_of_disk, io_failed (everything is still mapped), driver_failed (an
    /// unmap failed; everything is mapped again, but for what the driver refuses to map: that sleeps, and its
    /// memory stays on the GPU).
    [[nodiscard]] Result<void> commit(const std::vector<ledger::Backing*>& give_up);
    /// What was done on each device. Notes what could not be released.
    void describe(model::Report& report) const;

private:
    [[nodiscard]] Result<void> draft(DeviceSleep& device);
    [[nodiscard]] Result<void> transfer(DeviceSleep& device, ProgressCounter& progress);
    [[nodiscard]] Result<void> copy_out(DeviceSleep& device, store::ArenaPreparer& preparer,
                                        ProgressCounter& progress);
    [[nodiscard]] Result<void> write_files(DeviceSleep& device, ProgressCounter& progress);
    [[nodiscard]] Result<void> write_file(DeviceSleep& device, VaultDraft& draft, Staging& staging,
                                          ProgressCounter& progress);
    [[nodiscard]] VaultDraft& draft_of(DeviceSleep& device, ledger::TagId tag) const;
    [[nodiscard]] Result<void> unmap_all();
    void map_again();
    /// What could not be mapped again sleeps: nobody may touch it, and a wake maps it. Returns how many
    /// ranges.
    std::size_t leave_asleep();
    void release(DeviceSleep& device);
    /// Gives the drafts' vaults, and their owners a note of them. May throw for want of memory; strike_off()
    /// takes it back.
    void enlist(DeviceSleep& device);
    /// Gives files that are to stay the names of such: not before all are whole, for a sleep that fails or is
    /// killed leaves only what the next one removes. Errors: out_of_disk, io_failed.
    [[nodiscard]] Result<void> name_kept_files();
    void strike_off();
    void settle(DeviceSleep& device);

    const driver::Api& api_;
    store::Pinner& pinner_;
    Vaults& vaults_;
    Engine::Options options_; ///< for each device, once prepare() knows them
    Keeping keeping_;
    std::vector<DeviceSleep> devices_;
    std::size_t unreleased_ = 0;
};

} // namespace gpu_sleep::sleep
