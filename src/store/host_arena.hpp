// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Host memory that keeps contents: reserved at once, filled with pages and pinned piece by piece on several
// threads, so that copying can start when the first piece is there, and given back as contents die.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "model/step_clock.hpp"
#include "store/host_claim.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace gpu_sleep::store {

/// Makes host memory known to the GPUs (page-locked) and forgets it again. Implemented where the driver is
/// known. Called from several threads at once, for disjoint memory. Must outlive the arenas that use it.
class Pinner {
public:
    virtual ~Pinner() = default;
    /// Errors: any; the memory is then used unpinned.
    [[nodiscard]] virtual Result<void> pin(std::span<std::byte> memory) = 0;
    /// Returns false if the memory is still pinned: it must then stay where it is for good.
    [[nodiscard]] virtual bool unpin(std::span<std::byte> memory) noexcept = 0;
};

/// A span of host memory in pieces of `k_piece_bytes` (the last may be shorter). Anonymous, private, on huge
/// pages where they can be had, left out of core dumps and of children. Begins on a huge page; takes no more
/// memory than `bytes` rounded up to a page. Neither copyable nor movable; its figures may be read anywhere.
class HostArena {
public:
    /// The size at which populating and pinning together run fastest (tests/bench/host_arena_bench.cpp).
    static constexpr Bytes k_piece_bytes = 32 * k_mib;

    /// Reserves address space for `bytes`; takes no memory yet. `pinner` may be null: nothing is pinned.
    /// Errors: invalid_argument (zero bytes), out_of_host_memory (no address space: too large, or a limit on
    /// it). Source: mmap(2), madvise(2).
    [[nodiscard]] static Result<std::unique_ptr<HostArena>> create(Bytes bytes, Pinner* pinner);

    HostArena(const HostArena&) = delete;
    HostArena& operator=(const HostArena&) = delete;
    /// Unpins one more piece, which takes 0.4 ms; false when none is left to unpin. For whoever gives an
    /// arena back and has something else to do in between. No ArenaPreparer may still work on it.
    [[nodiscard]] bool unpin_next() noexcept;
    /// Gives back what of the piece lies in none of `needed`, parts of the arena in their order, by whole
    /// huge pages: one of which only a part went would be split, and would come back under pressure alone.
    /// Returns how much that was; what the driver does not let go stays. What is needed is pinned again,
    /// which takes 0.5 ms for a whole piece: to wait for the next wake with that, or to copy unpinned, would
    /// make the wake up to five times as long. What cannot be pinned is copied unpinned. While nobody copies
    /// from or to the arena, which may be out of reach (protect()). Where there is no memory for it (which is
    /// thrown) nothing has changed.
    [[nodiscard]] Bytes shrink(std::size_t index, std::span<const std::span<const std::byte>> needed);
    /// Puts the memory out of reach of this process's threads, or within it again; the GPUs' copies of what
    /// is pinned do not ask. One system call each, for all of it. What cannot be protected stays in reach.
    /// Errors of unprotect(): out_of_host_memory (the kernel has no room to note it; all stays as it is).
    /// Source: mprotect(2).
    void protect() noexcept;
    [[nodiscard]] Result<void> unprotect() noexcept;
    /// Unpins and returns all memory, but for parts that cannot be unpinned: those stay for good, with a
    /// warning. No ArenaPreparer may still work on it. Takes 12 ms a GiB when pinned.
    ~HostArena();

    [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t piece_count() const noexcept { return pieces_.size(); }
    [[nodiscard]] std::span<std::byte> piece(std::size_t index) const noexcept;
    /// Whether all that is left of the piece is pinned; false means that copies to and from it go through the
    /// driver's own staging. Once the piece has been waited for, and not while it is shrunk.
    [[nodiscard]] bool is_pinned(std::size_t index) const noexcept;
    /// Memory that has pages.
    [[nodiscard]] Bytes populated_bytes() const noexcept { return populated_bytes_; }

private:
    friend class ArenaPreparer;

    /// A registration with the driver, which knows whole ones only. Begins on a huge page.
    struct Part {
        std::span<std::byte> memory;
        bool is_pinned = false;
    };

    HostArena(Bytes bytes, Pinner* pinner, std::byte* data);
    /// Gives pages to the piece. For each piece once; different pieces on different threads. Errors:
    /// out_of_host_memory.
    [[nodiscard]] Result<void> populate(std::size_t index);
    /// Pins the part, which has its pages, if that can be done.
    void pin(Part& part);
    /// Returns false if the part is still pinned.
    bool unpin(Part& part) noexcept;
    /// What of `part` is `needed`, on whole huge pages.
    [[nodiscard]] static std::vector<Part> rest_of(const Part& part,
                                                   std::span<const std::span<const std::byte>> needed);
    /// Drops the pages of `part`, which is not pinned, but for those of `rest`. Returns how much.
    Bytes drop_but(const Part& part, std::span<const Part> rest) noexcept;

    Bytes bytes_;
    Pinner* pinner_;
    std::byte* data_;
    std::vector<std::vector<Part>> pieces_; ///< what of each is left, in order
    std::size_t unpinned_ = 0;              ///< pieces that unpin_next() has gone through
    bool is_protected_ = false;
    std::atomic<Bytes> populated_bytes_{0};
    std::atomic<bool> has_complained_{false}; ///< of memory that cannot be pinned
};

/// Gives pages to, and pins, the pieces of some arenas, on threads of its own, in the order in which the
/// arenas were given. For one transaction; several may be at work at once. Thread-safe.
class ArenaPreparer {
public:
    /// Each piece is a claim.
    struct Options : ClaimOptions {
        unsigned threads = 8;              ///< at most one per processor is started, and at least one
        model::StepClock* steps = nullptr; ///< counts populating, pinning and waits, if there is one
    };

    /// The arenas, each given once, must outlive it. Starts at once, with as many threads as can be had.
    /// Errors: out_of_host_memory (not one thread could be started).
    [[nodiscard]] static Result<std::unique_ptr<ArenaPreparer>> start(std::vector<HostArena*> arenas,
                                                                      Options options);

    /// Waits until the piece is ready; calls `listen`, if there is one, now and then meanwhile. Errors:
    /// out_of_host_memory (says how much was needed, what limited it), cancelled, those of `listen`. Once a
    /// piece has failed, every piece that was not yet ready fails the same way.
    [[nodiscard]] Result<void> wait(const HostArena& arena, std::size_t piece,
                                    const std::function<Result<void>()>& listen = {});

    /// Takes up no further piece; pieces that are not ready fail.
    void cancel() noexcept;

    /// Cancels, then joins the threads; waits no longer than one piece takes.
    ~ArenaPreparer();
    ArenaPreparer(const ArenaPreparer&) = delete;
    ArenaPreparer& operator=(const ArenaPreparer&) = delete;

private:
    struct Task {
        HostArena* arena;
        std::size_t piece;
    };

    ArenaPreparer(std::vector<HostArena*> arenas, Options options);
    void work();
    /// Waits for headroom for the piece, then prepares it. Errors: out_of_host_memory, cancelled.
    [[nodiscard]] Result<void> fill(const Task& task);
    /// Waits, unless it is cancelled. Returns whether it is.
    [[nodiscard]] bool pause(Milliseconds time);
    void finish(std::size_t task, Result<void> result);
    [[nodiscard]] std::string missing() const;

    const unsigned most_threads_;
    model::StepClock* const steps_;
    HostClaims claims_;
    const std::vector<HostArena*> arenas_;
    // Not changed after start:
    std::map<const HostArena*, std::size_t> first_task_; ///< of each arena
    std::vector<Task> tasks_;                            ///< in the order in which they are taken up
    std::vector<std::thread> threads_;
    std::atomic<std::size_t> next_{0}; ///< task to take up
    std::atomic<bool> stopped_{false}; ///< set with mutex_ held, so that no waiting thread misses it

    std::mutex mutex_; ///< guards all below
    std::condition_variable changed_;
    std::vector<bool> ready_;      ///< for each task
    std::optional<Error> failure_; ///< of the first piece that failed
};

} // namespace gpu_sleep::store
