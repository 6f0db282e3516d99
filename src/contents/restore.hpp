// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Bringing kept ranges back to a device, and checking what arrived.

#pragma once

#include "contents/contents.hpp"

namespace gpu_sleep::contents {

/// One device's part of a wake, for one thread, whose current context is the session's. The contents stay
/// where they are kept, whatever becomes of it.
class Restore {
public:
    /// All outlive it. `devices`: how many share HostUse::staging.
    Restore(Contents& contents, driver::DeviceSession& session, ProgressCounter& progress,
            std::size_t devices);

    /// Before the first add(), behind whose copies it would wait: makes ready what bringing `ranges` back
    /// needs. `spare`: bytes of the device that may be taken for the while. Errors: out_of_host_memory,
    /// driver_failed, context_lost.
    [[nodiscard]] Result<void> expect(std::span<const Number> ranges, Bytes spare);

    struct Target {
        Number range = 0;
        driver::DeviceAddress address = 0; ///< where the range begins; it is mapped
    };
    /// Begins to bring the ranges back. What can be queued at once is. Errors: cancelled, timed_out,
    /// driver_failed, context_lost.
    [[nodiscard]] Result<void> add(std::span<const Target> targets);
    /// Brings back the rest, and compares the seals. What arrived damaged is brought once more. Errors: as
    /// add(); out_of_host_memory (for buffers).
    [[nodiscard]] Result<void> finish();

    /// Ranges that could not be brought back, or are damaged (damaged) where they are kept. Known once
    /// finish() is done.
    [[nodiscard]] const Failures& failures() const noexcept { return failures_; }

private:
    using Indices = std::vector<std::size_t>; ///< of wanted_
    /// Brings those of `blocks` that the host cache has, or the others.
    [[nodiscard]] Result<void> give(std::span<const Move> blocks, bool at_once);
    /// Sets those of `blocks` to zero that are stored nowhere: memory that is new is not trusted to be.
    [[nodiscard]] Result<void> zero(std::span<const Move> blocks);
    /// Whether the block is on its way once add() has returned: it is zero, or in the host cache.
    [[nodiscard]] static bool comes_at_once(const Move& block) noexcept;
    [[nodiscard]] std::vector<driver::FingerprintBlock> memory_of(const Indices& indices) const;
    /// Queues the fingerprints of the first `count` blocks on their way behind their copies, while more is
    /// copied.
    [[nodiscard]] Result<void> check_arriving(std::size_t count);
    [[nodiscard]] Result<void> verify();
    /// Adds those of `indices` to `damaged` whose seal is not what was `found`.
    void compare(const Indices& indices, std::span<const driver::Fingerprint> found, Indices& damaged) const;
    /// Those whose seal is not what it was.
    [[nodiscard]] Result<Indices> find_damage(const Indices& indices);

    Transfer transfer_;
    std::vector<SealedMove> wanted_;
    Indices arriving_; ///< on their way, and not yet in checks_
    Bytes arriving_bytes_ = 0;
    struct Check {
        Indices indices;
        std::span<const driver::Fingerprint> found; ///< once the session was synchronized
    };
    std::vector<Check> checks_;
    Failures failures_;
    Contents& contents_;
};

} // namespace gpu_sleep::contents
