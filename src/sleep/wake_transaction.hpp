// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One wake, step by step. Internal to this module.

#pragma once

#include "sleep/file_transfer.hpp"
#include "sleep/transfer.hpp"

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace gpu_sleep::sleep {

/// Contents in a file, and where on the device they belong.
struct FileExtent {
    std::uint64_t vault = 0;
    std::size_t number = 0; ///< of the extent in its snapshot
    driver::DeviceAddress address = 0;
    ledger::TagId tag = 0;
    friend bool operator<(const FileExtent& a, const FileExtent& b) noexcept {
        return std::tie(a.vault, a.number, a.address, a.tag) < std::tie(b.vault, b.number, b.address, b.tag);
    }
};

/// One device's part of a wake.
struct DeviceWake {
    struct KeptBlock {
        ledger::Backing* backing;
        Copy copy;                      ///< the same bytes in the arena; no arena when they lie in a file
        std::optional<FileExtent> file; ///< then, the extent that they are a part of
        driver::Fingerprint seal;
    };
    int device = 0;
    std::vector<Run> runs; ///< those with contents to bring back first, so that copying starts at once
    std::vector<ledger::Backing*> opened; ///< backings that this wake gave memory or a mapping
    std::vector<driver::FingerprintBlock> blocks;
    std::vector<KeptBlock> kept; ///< one for each of `blocks`
    std::vector<FileExtent> files;
    std::unique_ptr<Staging> staging;
    std::vector<ledger::Backing*> damaged;
    Spoiled spoiled;
    model::DeviceReport report;
    std::unique_ptr<driver::DeviceSession> session;
};

/// Prepares (creates, maps, fills, verifies) and commits (gives the vaults up) a wake. Until commit(), which
/// cannot fail, undo() takes everything back and the contents are still in their vaults. Tags that turn out
/// to be spoiled are taken back alone, by commit().
class WakeTransaction {
public:
    WakeTransaction(const driver::Api& api, store::Pinner& pinner, Vaults& vaults,
                    const Engine::Options& options) noexcept
        : api_(api), pinner_(pinner), vaults_(vaults), options_(options) {}

    /// Errors: out_of_device_memory, driver_failed, context_lost, cancelled; call undo() after each.
    [[nodiscard]] Result<void> prepare(const WakePlan& plan, const Control& control);
    /// The tags that stay asleep, known once prepare() is done.
    [[nodiscard]] const Spoiled& spoiled() const noexcept { return spoiled_; }
    /// Spoiled tags sleep again, and what of them is damaged is marked. All others are awake.
    void commit();
    void undo();
    /// Whether commit() woke anything.
    [[nodiscard]] bool has_changed() const noexcept;
    void describe(model::Report& report) const;

private:
    [[nodiscard]] Result<void> open(DeviceWake& device, const std::vector<ledger::Backing*>& backings);
    [[nodiscard]] Result<void> bring_back(DeviceWake& device, ProgressCounter& progress);
    [[nodiscard]] Result<void> map_run(DeviceWake& device, const driver::MemoryKind& kind, const Run& run);
    [[nodiscard]] Result<void> fill_run(DeviceWake& device, const Run& run, ProgressCounter& progress);
    /// Takes the memory of `opened` back, and returns how much; what cannot be unmapped keeps it, and the
    /// next wake fills it.
    Bytes close(const std::vector<ledger::Backing*>& opened);
    void take_back_spoiled(DeviceWake& device);
    [[nodiscard]] static bool has_damaged_file(const DeviceWake& device, const ledger::Backing& backing);
    /// Reads the extents of `wanted` from their files to where they belong. A file that is damaged, or cannot
    /// be read, spoils its tag.
    [[nodiscard]] Result<void> read_files(DeviceWake& device, const std::vector<FileExtent>& wanted,
                                          ProgressCounter& progress);
    [[nodiscard]] Result<void> read_file(DeviceWake& device, std::span<const FileExtent> wanted,
                                         std::size_t chunks, ProgressCounter& progress);
    /// Compares the seals of all that is not spoiled. What has changed is brought once more, and spoils its
    /// tag when that does not help.
    [[nodiscard]] Result<void> verify(DeviceWake& device, ProgressCounter& progress);
    [[nodiscard]] Result<void> bring_again(DeviceWake& device, const std::vector<std::size_t>& damaged,
                                           ProgressCounter& progress);
    [[nodiscard]] Result<std::vector<std::size_t>> find_damage(DeviceWake& device,
                                                               const std::vector<std::size_t>& indices);

    const driver::Api& api_;
    store::Pinner& pinner_;
    Vaults& vaults_;
    Engine::Options options_; ///< for each device, once prepare() knows them
    std::vector<DeviceWake> devices_;
    Spoiled spoiled_; ///< on any device
};

} // namespace gpu_sleep::sleep
