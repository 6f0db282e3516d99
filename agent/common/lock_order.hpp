// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The order in which the agent's mutexes are taken, in the one place where it stands: from above to below.
// Each Mutex of the agent says where it belongs, and clang checks that. What clang does not check is named
// below.

#pragma once

#include "base/thread_safety.hpp"

/// Before all of these come, which are no mutexes: the turnstile, held over callbacks, and the gate, inside
/// of which threads call the driver. Between starting and pools come two locks that clang does not know:
/// Contexts::alive, held while threads work in contexts that may end, and after it Captures::order
/// (agent/registry/contexts.hpp).
///
/// The mutexes of src come below the memory's, but have no level. Where one of them is a std::mutex, clang
/// does not know either what it guards: a comment says so. agent/torch_memory_saver is a library of its own,
/// which calls the agent as the program does, under its own mutex.
///
/// No mutex is held over callbacks of the program. The only ones that are held across socket work are the
/// memory's, in a transaction that reports progress or waits for the other processes of a joint operation,
/// and under it the one of contents::ProgressCounter.
namespace gpu_sleep::agent::lock_order {

/// Above it: starting and ending the agent, under which it makes its threads.
inline LockLevel starting;
/// Below it: the program's pools. Nobody waits for work under it.
inline LockLevel pools GPU_SLEEP_ACQUIRED_AFTER(starting);
/// Below it: the program's memory, under which nobody waits but for the driver, for host memory, for the
/// files of kept contents, and, in a joint operation, for the other processes.
inline LockLevel memory GPU_SLEEP_ACQUIRED_AFTER(pools);
/// Below it: the program's handles, and what it shares.
inline LockLevel handles GPU_SLEEP_ACQUIRED_AFTER(memory);
/// Below it: those under which no other is taken, held for moments: of the index of allocations, the gate,
/// the server's queue, the turnstile, and others.
inline LockLevel innermost GPU_SLEEP_ACQUIRED_AFTER(handles);

} // namespace gpu_sleep::agent::lock_order
