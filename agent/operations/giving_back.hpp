// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving back what nothing needs any more: a little at a time while nobody waits, or all at once where it may
// be what is missing.

#pragma once

#include "operations/parts.hpp"

namespace gpu_sleep::agent::operations {

// All are called on the operations thread.

/// Gives a little back, or pins a little of what a sleep has left to be pinned, or prepares a little for the
/// next one. False when nothing is left, or there is time: then it asks to be called again.
[[nodiscard]] bool tidy(Parts& parts);

/// Gives all back that nothing needs, and unpins the rest: the driver takes 12 ms a GiB each way for what is
/// pinned in a process that it checkpoints and restores. It is pinned again while the program works, or
/// copied from unpinned. False if the driver still has any of it.
[[nodiscard]] bool unpin_all(Parts& parts) noexcept;

/// Gives up what of the retained contents the host has no room for: for an operation that waits for something
/// else. Cheap where it was called just before. Not within a transaction.
void give_way_while_waiting(Parts& parts) noexcept;
/// Gives back all that is retired or wasted, at once, unless a context is ending just then: then tidy() does.
void give_back_retired(Parts& parts) noexcept;
/// Closes retired files, whose room on the disk is free then. Returns whether there were any.
bool give_back_files(Parts& parts);
/// Gives back all that is retired or wasted, at once. Returns whether there was any.
bool give_back_unneeded(Parts& parts);
/// Gives back all that is retained, retired or wasted, at once. Returns whether there was any.
bool give_back_all(Parts& parts);

} // namespace gpu_sleep::agent::operations
