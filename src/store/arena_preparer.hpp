// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making arenas ready piece by piece on several threads, so that copying can start when the first piece is
// there.

#pragma once

#include "base/threads.hpp"
#include "model/report.hpp"
#include "store/host_arena.hpp"
#include "store/host_budget.hpp"

namespace gpu_sleep::store {

/// Gives pages to, and pins, the pieces of some arenas, on threads of its own, in the order in which the
/// arenas were given. For one transaction; several may be at work at once. Thread-safe.
class ArenaPreparer {
public:
    /// Each piece is a claim, or, where there is plenty of memory, each few.
    struct Options : ClaimOptions {
        unsigned threads = 8;              ///< at most one per processor is started, and at least one
        model::StepClock* steps = nullptr; ///< counts populating, pinning and waits, if there is one
    };

    /// The arenas, each given once, must outlive it. Starts at once, with as many threads as can be had.
    /// Errors: out_of_host_memory (not one thread could be started).
    [[nodiscard]] static Result<std::unique_ptr<ArenaPreparer>> start(std::vector<HostArena*> arenas,
                                                                      Options options);

    /// Waits until the piece is ready; calls `listen` now and then meanwhile. Errors:
    /// out_of_host_memory (says how much was needed, what limited it), cancelled, those of `listen`. Once a
    /// piece has failed, every piece that was not yet ready fails the same way.
    [[nodiscard]] Result<void> wait(
        const HostArena& arena, std::size_t piece,
        const std::function<Result<void>()>& listen = [] { return Result<void>(); });

    /// Takes up no further piece; pieces that are not ready fail.
    void cancel() noexcept;

    /// Waits no longer than one piece takes.
    ~ArenaPreparer() { cancel(); }
    ArenaPreparer(const ArenaPreparer&) = delete;
    ArenaPreparer& operator=(const ArenaPreparer&) = delete;

private:
    struct Task {
        HostArena* arena;
        std::size_t piece;
    };

    ArenaPreparer(std::vector<HostArena*> arenas, Options options);
    void work();
    /// Waits for headroom for the piece, if `claim` has none left for it, then prepares it. Errors:
    /// out_of_host_memory, cancelled.
    [[nodiscard]] Result<void> fill(const Task& task, std::optional<HostClaim>& claim);
    /// Why no more pieces are made ready.
    [[nodiscard]] Error ended() const GPU_SLEEP_REQUIRES(mutex_);
    void finish(const Task& task, Result<void> result);
    [[nodiscard]] std::string missing();

    const Options options_;
    const std::vector<HostArena*> arenas_;
    // Not changed after start:
    std::vector<Task> tasks_;          ///< pieces that are not ready, in the order in which they are taken up
    std::atomic<std::size_t> next_{0}; ///< task to take up
    std::atomic<bool> stopped_{false}; ///< set with mutex_ held, so that no waiting thread misses it

    Mutex mutex_; ///< guards which pieces are ready, too
    Condition changed_;
    std::optional<Error> failure_ GPU_SLEEP_GUARDED_BY(mutex_); ///< of the first piece that failed

    std::unique_ptr<ThreadPool> pool_; ///< ended first
};

} // namespace gpu_sleep::store
