// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory behind handles of the driver: the program's own virtual memory, and memory of other processes.

#pragma once

#include "base/process.hpp"
#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"
#include "driver/memory.hpp"

#include <cuda.h>

#include <cstdint>
#include <list>
#include <map>
#include <vector>

namespace gpu_sleep::agent::registry {

struct Mapping {
    Bytes bytes = 0;
    Bytes offset = 0;
    std::uint64_t handle = 0; ///< the program's
    driver::DeviceMask access = 0;
    bool has_other_access = false; ///< of the host, or for reading only
    bool in_ledger = false;        ///< the ledger has it, and its driver handle
};

struct Handle {
    CUmemGenericAllocationHandle real = 0; ///< the driver's, unless the ledger has it
    bool host_backed = false;              ///< that is host memory, to which it was moved
    Bytes bytes = 0;
    CUmemAllocationProp properties{};
    unsigned references = 0;
    std::vector<CUdeviceptr> mappings;
    const char* stay_reason = nullptr; ///< why it has to stay
};

/// Its mutex comes after the memory's, which a sleep holds for long: who asks about handles, or has one
/// without a mapping, which the ledger does not know, needs this one alone.
struct Handles {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    std::map<std::uint64_t, Handle> handles GPU_SLEEP_GUARDED_BY(mutex);
    std::map<CUdeviceptr, Mapping> mappings GPU_SLEEP_GUARDED_BY(mutex);
    std::uint64_t next GPU_SLEEP_GUARDED_BY(mutex) = 0;
};

/// Memory of another process, opened here.
struct Import {
    ProcessIdentity from;
    std::uint64_t allocation = 0; ///< there
    CUdeviceptr given = 0;        ///< what the program got
    driver::VaReservation place;
    driver::DeviceMask access = 0;
    unsigned opens = 1;
};

struct Imports {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    std::list<Import> all GPU_SLEEP_GUARDED_BY(mutex);
};

} // namespace gpu_sleep::agent::registry
