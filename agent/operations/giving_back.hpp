// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving back what nothing needs any more: a little at a time while nobody waits, or all at once where it may
// be what is missing.

#pragma once

#include "operations/preparing.hpp"
#include "operations/process_status.hpp"

namespace gpu_sleep::agent::operations {

/// One for the process. Used on the operations thread.
class GivingBack {
public:
    GivingBack(ProgramMemory& memory, RetiredContents& retired, ProcessStatus& status, IdleWatch& idle,
               Preparation& preparation) noexcept
        : memory_(memory), retired_(retired), status_(status), idle_(idle), preparation_(preparation) {}

    /// Gives a little back, or pins a little of what a sleep has left to be pinned, or prepares a little for
    /// the next one. False when nothing is left, or there is time: then it asks to be called again.
    [[nodiscard]] bool some();

    /// Gives all back that nothing needs, and unpins the rest: the driver takes 12 ms a GiB each way for what
    /// is pinned in a process that it checkpoints and restores. It is pinned again while the program works,
    /// or copied from unpinned. False if the driver still has any of it.
    [[nodiscard]] bool unpin_all() noexcept;

    /// Gives up what of the retained contents the host has no room for: for an operation that waits for
    /// something else. Cheap where it was called just before. Not within a transaction.
    void while_waiting() noexcept;
    /// Whether anything is retired that was not given back yet, as far as it was collected.
    [[nodiscard]] bool has_retired() const noexcept { return retired_.has_any(); }
    /// Gives back all that is retired or wasted, at once, unless a context is ending just then: then some()
    /// does.
    void retired() noexcept;
    /// Closes retired files, whose room on the disk is free then. Returns whether there were any.
    bool files();
    /// Gives back all that is retired or wasted, at once. Returns whether there was any.
    bool unneeded();
    /// Gives back all that is retained, retired or wasted, at once. Returns whether there was any.
    bool all();

private:
    [[nodiscard]] bool retained_gives_way() noexcept;
    [[nodiscard]] bool a_piece();
    [[nodiscard]] bool is_any_awake();
    template <class Work>
    [[nodiscard]] bool in_time(bool may_rest, Work&& work);
    [[nodiscard]] bool in_time();

    ProgramMemory& memory_;
    RetiredContents& retired_;
    ProcessStatus& status_;
    IdleWatch& idle_;
    Preparation& preparation_;
    Clock::time_point next_look_at_host_{}; ///< for what is retained
    Clock::time_point next_time_{};         ///< for a little, while the program works
    bool is_host_short_ = false;            ///< of memory: all is given back at once
};

} // namespace gpu_sleep::agent::operations
