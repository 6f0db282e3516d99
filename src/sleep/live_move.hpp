// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving one piece of a running program's memory to other backings at the same addresses. Its owner calls the
// steps in turn, and holds the program's work back for the last alone.

#pragma once

#include "contents/contents.hpp"
#include "driver/api.hpp"
#include "driver/device_session.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "driver/memory.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"
#include "model/report.hpp"
#include "sleep/live_plan.hpp"

namespace gpu_sleep::sleep {

/// One piece. Whatever fails, each of its backings is as it was, or has moved, with all its bytes; where the
/// driver maps neither any more, the backing sleeps, its contents in its memory, and a wake maps it again.
/// Steps that take a session wait for no work of the program, but for what keeps the device's processors.
/// To the host: create(), copy() until that was the rest, seal(), swap(). To the device: create(), swap(),
/// which copies: to find what has changed since an earlier copy would take as long as that.
class LiveMove {
public:
    /// `kind` is of the memory that it moves to; `steps` counts what no session does. All outlive it.
    LiveMove(const driver::Api& api, const driver::MemoryKind& kind, std::span<const LivePart> piece,
             model::StepClock& steps);
    LiveMove(const LiveMove&) = delete;
    LiveMove& operator=(const LiveMove&) = delete;
    ~LiveMove() { let_go(); }

    /// Makes the new memory, and maps it aside. Any thread may; the ledger is not used. Errors:
    /// out_of_host_memory, out_of_device_memory, driver_failed.
    [[nodiscard]] Result<void> create();
    /// To the host: copies what has changed since the last round, at first all of it, while the program runs:
    /// 64 MiB of it, and returns whether that was the rest. What is gone by now is left out. The caller holds
    /// the mutex that guards `ledger`. Errors: those of DeviceSession.
    [[nodiscard]] Result<bool> copy(driver::DeviceSession& session, ledger::Ledger& ledger);
    /// To the host: takes the fingerprints of what was copied. Errors: those of DeviceSession.
    [[nodiscard]] Result<void> seal(driver::DeviceSession& session);
    /// For who holds the mutex, once no work can use the piece: compares it with its copies, copies what has
    /// changed, if that is little for `round`, and maps the copies in place of it. To the device it copies
    /// all of it, in any round, and compares the copies with what it has read. Verdict::move says that it has
    /// moved. Of what sleeps then, what `contents` retains is forgotten: it may be older. Errors: those of
    /// DeviceSession; damaged (a copy is not what was copied), driver_failed.
    [[nodiscard]] Result<Verdict> swap(driver::DeviceSession& session, ledger::Ledger& ledger,
                                       contents::Contents& contents, int round);
    /// Releases what the piece has moved from, or was to move to. Nothing else follows, and no work of a
    /// session still uses it. Any thread may.
    void let_go() noexcept;

    [[nodiscard]] int device() const noexcept { return kind_.device(); }
    [[nodiscard]] Bytes bytes() const noexcept;
    /// How much of it has moved.
    [[nodiscard]] Bytes moved() const noexcept { return moved_; }

private:
    enum class Side : std::uint8_t { old_one, new_one };
    struct Part {
        LivePart what;
        driver::DeviceAddress aside = 0;
        driver::PhysicalMemory::Handle made = 0; ///< of the other side than the ledger has
        bool is_mapped_aside = false;
        bool is_gone = false;
        // While it is swapped, and of what the ledger says then.
        ledger::Backing* backing = nullptr;
        driver::PhysicalMemory::Handle old_handle = 0;
        Side shows = Side::old_one;
        bool is_mapped = true;
    };
    struct Block {
        std::size_t part = 0;
        Span span;                ///< of the part
        driver::Fingerprint seal; ///< of its copy
        bool is_stale = true;
    };
    using Neighbours = std::span<Part>; ///< that one call unmaps, or grants access to

    /// Finds the backings of the parts; one that is not as it was when the piece was chosen is gone.
    void look(ledger::Ledger& ledger);
    [[nodiscard]] std::vector<driver::FingerprintBlock> stale_blocks(std::span<const Block> among,
                                                                     Side side) const;
    [[nodiscard]] driver::DeviceAddress address_of(const Block& block, Side side) const noexcept;
    /// Queues copies of those that are stale.
    [[nodiscard]] Result<void> copy_stale(driver::DeviceSession& session, std::span<const Block> among);
    /// Takes the fingerprints of their copies, once they are made.
    [[nodiscard]] Result<void> seal_stale(driver::DeviceSession& session);
    /// Compares each block with its copy's seal: those that differ are stale. Returns what they hold now.
    [[nodiscard]] Result<std::vector<driver::Fingerprint>> find_stale(driver::DeviceSession& session);
    /// Whether it may move: then all copies are right. `bytes` of the piece are still there.
    [[nodiscard]] Result<Verdict> compare(driver::DeviceSession& session, Bytes bytes, int round);
    [[nodiscard]] Result<Verdict> copy_all(driver::DeviceSession& session);
    /// Seals the copies of those that are stale, and compares them with what was `copied`. Errors: damaged.
    [[nodiscard]] Result<void> check_copies(driver::DeviceSession& session,
                                            std::span<const driver::Fingerprint> copied);
    [[nodiscard]] Result<void> exchange(contents::Contents& contents);
    [[nodiscard]] std::vector<Neighbours> neighbours();
    [[nodiscard]] static driver::AddressSpan span_of(Neighbours some) noexcept;
    /// Has the parts show that side, whatever they show now. Errors: driver_failed (they may show nothing).
    [[nodiscard]] Result<void> show(Neighbours some, Side side);
    // The driver's calls, and the time they take.
    [[nodiscard]] Result<void> map(driver::AddressSpan span, driver::PhysicalMemory::Handle handle);
    [[nodiscard]] Result<void> set_access(driver::AddressSpan span, driver::DeviceMask devices);
    [[nodiscard]] Result<void> unmap(driver::AddressSpan span);
    /// Writes into the ledger what the parts show.
    void note() noexcept;
    /// Has them sleep, their contents in their memory.
    void put_to_sleep(Neighbours some, contents::Contents& contents) noexcept;

    const driver::Api& api_;
    const driver::MemoryKind& kind_;
    std::vector<Part> parts_; ///< by address
    std::vector<Block> blocks_;
    std::size_t copied_ = 0; ///< of those, in this round
    std::optional<driver::VaReservation> aside_;
    Bytes moved_ = 0;
    model::StepClock& steps_;
};

} // namespace gpu_sleep::sleep
