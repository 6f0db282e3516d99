// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// This process's places in the lines of GPUs, the locks of GPUs that it has, and its room on them.

#pragma once

#include "base/error.hpp"
#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"
#include "peers/gpu_queue.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::agent::operations {

/// One for the process, to which the locks belong. GPUs are named by their UUIDs. A GPU that has no line,
/// because there is no directory for it, counts as locked: then there are no turns. Thread-safe.
class GpuLines {
public:
    struct Unlock {
        std::vector<std::string> gpus;
        void operator()(GpuLines* lines) const noexcept { lines->unlock(gpus); }
    };
    /// Locks of GPUs, given up when it is destroyed, or of none; a process may have the same one several
    /// times.
    using Locks = std::unique_ptr<GpuLines, Unlock>;
    struct GiveRoomBack {
        void operator()(GpuLines* lines) const noexcept { lines->give_room_back(); }
    };
    /// Room on GPUs, given back when it is destroyed. One at a time.
    using Room = std::unique_ptr<GpuLines, GiveRoomBack>;

    /// Stands in the line of each of `gpus`. Returns how many stand before this process.
    [[nodiscard]] std::uint32_t stand(int directory, const std::vector<std::string>& gpus);
    /// Gives up all places.
    void leave() noexcept;

    /// Takes the locks of all `gpus`, whoever stands in line, or of none: nobody waits with one of them.
    /// Nothing: another process has one.
    [[nodiscard]] std::optional<Locks> lock(int directory, const std::vector<std::string>& gpus);
    /// Whether others have set room aside on one of `gpus`, or count.
    [[nodiscard]] bool are_shared(int directory, const std::vector<std::string>& gpus);

    using CountRoom = std::function<Result<peers::BytesByGpu>(const peers::BytesByGpu& of_others)>;
    /// Sets room aside on all `gpus`, of which `count` says how much, while nobody else counts: see
    /// peers::begin_counting(). Waits for others to be done. `keep_going` is asked meanwhile. Errors:
    /// out_of_device_memory (others are not done at the deadline), cancelled, those of `count`.
    [[nodiscard]] Result<Room> wait_for_room(const std::vector<std::string>& gpus, const CountRoom& count,
                                             Clock::time_point deadline,
                                             const std::function<bool()>& keep_going);

private:
    struct Line {
        peers::GpuQueue line;
        unsigned locks = 0; ///< how many times this process has its lock
    };

    /// One try of wait_for_room(). False: others are not done.
    [[nodiscard]] Result<bool> try_for_room(int directory, const std::vector<std::string>& gpus,
                                            const CountRoom& count);
    /// Null if there is none.
    [[nodiscard]] Line* find(int directory, const std::string& gpu) GPU_SLEEP_REQUIRES(mutex_);
    void unlock(const std::vector<std::string>& gpus) noexcept;
    void give_room_back() noexcept;

    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< held for moments only
    std::map<std::string, Line> lines_ GPU_SLEEP_GUARDED_BY(mutex_);
};

} // namespace gpu_sleep::agent::operations
