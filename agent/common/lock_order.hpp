// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The order in which the agent's mutexes are taken, in the one place where it stands: from above to below.
// Each mutex says where it belongs, and clang checks that.

#pragma once

#include "base/thread_safety.hpp"

/// Before all of these come, which are no mutexes: the turnstile, held over callbacks, and the gate, inside
/// of which threads call the driver. Between starting and pools comes the lock of the contexts
/// (agent/registry/contexts.hpp), held while threads work in contexts that may end. None of the mutexes is
/// held across socket work or callbacks.
namespace gpu_sleep::agent::lock_order {

/// Above it: starting and ending the agent, under which it makes its threads.
inline LockLevel starting;
/// Below it: the program's pools. Nobody waits for work under it.
inline LockLevel pools GPU_SLEEP_ACQUIRED_AFTER(starting);
/// Below it: the program's memory, under which nobody waits for anything but the driver and the files of kept
/// contents.
inline LockLevel memory GPU_SLEEP_ACQUIRED_AFTER(pools);
/// Below it: the program's handles, and what it shares.
inline LockLevel handles GPU_SLEEP_ACQUIRED_AFTER(memory);
/// Below it: those under which no other is taken, held for moments: of the index of allocations, the gate,
/// the server's queue, the turnstile, and others.
inline LockLevel innermost GPU_SLEEP_ACQUIRED_AFTER(handles);

} // namespace gpu_sleep::agent::lock_order
