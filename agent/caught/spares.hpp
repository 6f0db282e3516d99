// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pools and their spares: blocks that were freed in a stream's order, kept until they are given out again or
// given back. What the program's calls mean for them is in pools.cpp. Internal to this module.

#pragma once

#include "base/immortal.hpp"
#include "caught/state.hpp"
#include "driver/memory.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace gpu_sleep::agent::caught {

/// A stream, and its context: every context has default streams of the same handles, and an event only works
/// in its own.
struct StreamKey {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

/// A block that was freed, and when its last user is done with it.
struct Spare {
    CUdeviceptr address = 0;
    StreamKey freed_in;
    bool in_order = false;  ///< that stream may have it at once
    CUevent done = nullptr; ///< of the stream's context
};

/// What is known of a pool of the program's, or of a device's own.
struct Pool {
    int device = 0;
    bool is_caught = true; ///< made of the device's own memory, and never shared
    Bytes threshold = 0;   ///< what it may keep unused across a synchronisation
    driver::DeviceMask access = 0;
    std::map<Bytes, std::vector<Spare>> spares; ///< by their block_size()
    Bytes spare_bytes = 0;
    Bytes used = 0;
    Bytes used_high = 0;
    Bytes reserved_high = 0;

    [[nodiscard]] Bytes reserved() const noexcept { return used + spare_bytes; }
};

/// All pools. Its mutex comes before the memory's. Nobody waits for work under it.
struct Pools {
    std::mutex mutex; ///< guards all below
    std::map<CUmemoryPool, Pool> pools;
    std::vector<Spare> leaving;          ///< blocks of no pool: given back once they are done
    std::atomic<bool> has_excess{false}; ///< some pool keeps more than its threshold, or a block leaves
    std::atomic<Clock::time_point> next_trim{Clock::time_point{}};
    static Pools& instance() {
        static Immortal<Pools> s_all;
        return *s_all;
    }
};

// The caller of what follows holds the mutex of all pools.

/// What a block of so many bytes takes: sizes between two powers of two fall into four classes, so that at
/// most a fifth is wasted and blocks fit again.
[[nodiscard]] Bytes block_size(Bytes bytes);
/// Takes a spare of the size and the tag that the stream may use now. In a capture of any stream no event is
/// asked.
[[nodiscard]] std::optional<CUdeviceptr> take_spare(const Agent::Memory& memory, Pool& pool, Bytes size,
                                                    ledger::TagId tag, const StreamKey& key);
/// Keeps a freed block until the stream has come so far: as a spare of `pool`, or, where that is null, to be
/// given back. False when no event can tell: then the block is the caller's still.
[[nodiscard]] bool keep_until_done(Pools& all, const Agent::Memory& memory, Pool* pool,
                                   const Known& allocation, const StreamKey& key);
/// Frees spares that nobody uses any more until the pool keeps no more than `keep`.
void trim_pool(const Agent::Memory& memory, Pool& pool, Bytes keep);
/// Frees the blocks of no pool that nobody uses any more.
void trim_leaving(Pools& all, const Agent::Memory& memory);
/// Frees all spares of all pools, and blocks of none, that nobody uses any more.
void trim_all(Pools& all, const Agent::Memory& memory);

} // namespace gpu_sleep::agent::caught
