// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Vaults: where kept contents lie while their owners sleep, with the fingerprints that seal them.

#pragma once

#include "driver/kernels/fingerprint.hpp"
#include "ledger/ledger.hpp"
#include "store/host_arena.hpp"
#include "store/snapshot_writer.hpp"

#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace gpu_sleep::sleep {

/// The contents of one tag on one device. Seals are fingerprints of blocks as the GPU held them, in the order
/// of the extents; each extent begins a new block.
struct Vault {
    std::unique_ptr<store::HostArena> arena; ///< null when they lie in a file
    std::optional<store::Snapshot> snapshot; ///< its extents are numbered by KeptExtent::vault_offset
    bool keeps_file = false;                 ///< the file stays when the contents are no longer needed
    std::vector<driver::Fingerprint> seals;
    Bytes live = 0; ///< of the extents that still need it
};

/// All vaults of the process. Guarded by the mutex of the ledger, whose extents name vaults by number.
class Vaults {
public:
    /// The number of the new vault.
    std::uint64_t add(Vault vault);
    [[nodiscard]] const Vault& at(std::uint64_t id) const { return vaults_.at(id); }
    [[nodiscard]] Vault& at(std::uint64_t id) { return vaults_.at(id); }

    enum class Files {
        as_asked, ///< kept if that was asked for
        removed
    };
    /// Gives up `extents`. A vault that nothing needs any more is retired: it holds its memory until reap(),
    /// but its file has no name any more.
    void forget(const std::vector<ledger::KeptExtent>& extents, Files files = Files::as_asked) noexcept;

    using ByNumber = std::map<std::uint64_t, Vault>;
    /// Retired vaults, for the caller to destroy where it takes nobody's time: unpinning takes 12 ms a GiB.
    [[nodiscard]] ByNumber reap() { return std::exchange(retired_, {}); }

    /// Host memory of the vaults that are in use.
    [[nodiscard]] Bytes host_bytes() const noexcept;
    /// What the files of those vaults take.
    [[nodiscard]] Bytes file_bytes() const noexcept;
    /// Removes the files of all vaults, but for those to be kept: the process is ending.
    void remove_files() noexcept;

private:
    /// Keeps or removes the vault's file, if it has one.
    static void let_go(Vault& vault, Files files) noexcept;

    ByNumber vaults_;
    ByNumber retired_;
    std::uint64_t next_id_ = 1;
};

} // namespace gpu_sleep::sleep
