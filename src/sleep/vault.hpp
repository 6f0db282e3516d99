// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Vaults: where kept contents lie while their owners sleep, with the fingerprints that seal them.

#pragma once

#include "driver/kernels/fingerprint.hpp"
#include "ledger/ledger.hpp"
#include "store/host_arena.hpp"
#include "store/snapshot_writer.hpp"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace gpu_sleep::sleep {

/// What one piece of an arena is used for.
struct PieceUse {
    Bytes held = 0; ///< memory that it takes
    Bytes live = 0; ///< of extents that still need it
    Bytes dead = 0; ///< of extents that died since it was last shrunk

    /// Once nothing in it lives, or what died is a quarter of what it holds. So a quarter of the memory is
    /// wasted at most, and what is left over of huge pages; and however small the parts are that die, one
    /// after another, a piece is shrunk some fifteen times until it is empty, at some 4 ms each
    /// (tests/bench/host_arena_bench.cpp measures it).
    [[nodiscard]] bool is_worth_shrinking() const noexcept {
        constexpr Bytes k_least_share = 4;
        return dead > 0 && (live == 0 || dead * k_least_share >= held);
    }
};

/// The contents of one tag on one device. Seals are fingerprints of blocks as the GPU held them, in the order
/// of the extents; each extent begins a new block.
struct Vault {
    std::unique_ptr<store::HostArena> arena; ///< null when they lie in a file
    std::optional<store::Snapshot> snapshot; ///< its extents are numbered by KeptExtent::vault_offset
    bool keeps_file = false;                 ///< the file stays when the contents are no longer needed
    std::vector<driver::Fingerprint> seals;
    Bytes live = 0;               ///< of the extents that still need it
    std::vector<PieceUse> pieces; ///< of the arena

    /// Counts an extent that needs the arena.
    void note_live(const ledger::KeptExtent& extent);
    /// Counts it as dead. Returns whether a piece is worth shrinking that was not before.
    bool note_dead(const ledger::KeptExtent& extent) noexcept;
    [[nodiscard]] Bytes host_bytes() const noexcept;
};

/// A piece that is worth shrinking. The arena lives until the vaults are reaped.
struct Waste {
    std::uint64_t vault = 0;
    store::HostArena* arena = nullptr;
    std::size_t piece = 0;
    std::vector<std::span<const std::byte>> needed; ///< extents that lie in it, in order
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
    /// but its file has no name any more. What is worth giving back is told of, see when_wasted().
    void forget(const std::vector<ledger::KeptExtent>& extents, Files files = Files::as_asked) noexcept;

    using ByNumber = std::map<std::uint64_t, Vault>;
    /// Retired vaults, for the caller to destroy where it takes nobody's time: unpinning takes 12 ms a GiB.
    [[nodiscard]] ByNumber reap() { return std::exchange(retired_, {}); }

    /// From now on `told` is called when there is something to reap, or to shrink: by whoever frees memory,
    /// with the mutex of the ledger held. It must neither take memory nor wait.
    void when_wasted(std::function<void()> told) { told_ = std::move(told); }
    /// A piece to shrink, after which note_shrunk() is told how much that gave back. Its arena must not be in
    /// use meanwhile; extents may die. Nothing if there is none.
    [[nodiscard]] std::optional<Waste> find_waste(const ledger::Ledger& ledger);
    void note_shrunk(const Waste& waste, Bytes given_back) noexcept;
    /// Whether there is something to reap, or to shrink.
    [[nodiscard]] bool has_waste() const noexcept;

    /// Host memory of the vaults that are in use.
    [[nodiscard]] Bytes host_bytes() const noexcept;
    /// Host memory of those that are retired.
    [[nodiscard]] Bytes retired_bytes() const noexcept;
    /// What the files of those vaults take.
    [[nodiscard]] Bytes file_bytes() const noexcept;
    /// Files of retired vaults that could not be removed.
    [[nodiscard]] std::vector<std::filesystem::path> files_out_of_reach() const;
    /// Removes the files of all vaults, but for those to be kept: the process is ending.
    void remove_files() noexcept;

private:
    /// Keeps or removes the vault's file, if it has one.
    static void let_go(Vault& vault, Files files) noexcept;
    [[nodiscard]] static Bytes host_bytes_of(const ByNumber& vaults) noexcept;

    ByNumber vaults_;
    ByNumber retired_;
    std::uint64_t next_id_ = 1;
    std::function<void()> told_ = [] {};
};

} // namespace gpu_sleep::sleep
