// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What simulated processes that share the devices know of each other.

#pragma once

#include "support/not_copied.hpp"
#include "support/simulated_driver/settings.hpp"

#include <cuda.h>
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <span>

namespace gpu_sleep::sim {

/// What processes share that a checkpoint takes and a restore fails for.
enum class Standing : int { host_export, import, ipc_import, pool_import };
inline constexpr int k_standing_kinds = 4;

/// Memory of the program that is registered; unused where `end` is 0.
struct SharedSpan {
    std::atomic<std::uint64_t> begin, end;
};
inline constexpr int k_max_registered = 512; ///< that a checkpoint knows of: the first ones

/// One process that uses the devices.
struct SharedProcess {
    std::atomic<pid_t> pid;
    std::atomic<int> state;           ///< a CUprocessState; its driver calls wait unless it is RUNNING
    std::atomic<bool> lost;           ///< a restore found no room: none will do any more
    std::atomic<bool> cannot;         ///< a checkpoint of it fails, and it with it
    std::atomic<std::uint64_t> calls; ///< of the driver, under way
    std::atomic<std::uint64_t> work;  ///< in streams, not done
    std::atomic<unsigned> managed;    ///< managed allocations, which no checkpoint takes
    std::atomic<unsigned> standing[k_standing_kinds]; ///< what no restore brings back, by Standing
    std::atomic<bool> hidden;   ///< at the checkpoint, registered memory was out of the process's reach
    std::atomic<bool> restored; ///< and has made no call since
    SharedSpan registered[k_max_registered];
    int gpus[k_max_devices];               ///< which GPU each of its devices is: a restore may change that
    std::uint64_t used[k_max_devices];     ///< by its own numbers of devices
    std::uint64_t put_away[k_max_devices]; ///< what it used, while it is checkpointed
};

/// Of a GPU, by the management library's number, which writes it in the same way.
[[nodiscard]] CUuuid uuid_of(int gpu) noexcept;

/// A table of the processes, in a file that they share, or in private memory when none is named. A process
/// that died has no part in it: each keeps a file lock while it lives. (They are POSIX record locks: a
/// process that opens and closes the file itself lets go of its own.) Thread-safe.
class SharedState {
public:
    /// The one of settings(), in which this process has a place from then on. Ends the process if the state
    /// file cannot be used: a test that believes it shares a device must not run on its own.
    static SharedState& instance();

    /// Guards the bytes of all processes; robust: if its last owner died, what it guards is plain sums, at
    /// worst one update behind.
    class Lock : test::NotCopied {
    public:
        Lock();
        ~Lock();
    };

    [[nodiscard]] SharedProcess& own() noexcept;
    /// Whether any process ever shared memory with another.
    [[nodiscard]] std::atomic<bool>& shares_memory() noexcept;
    /// Places that were ever taken.
    [[nodiscard]] std::span<SharedProcess> processes() noexcept;
    [[nodiscard]] bool is_alive(const SharedProcess& process) const;
    /// The one with this pid; null if it uses no device, or not these.
    [[nodiscard]] SharedProcess* find(pid_t pid);

private:
    struct Table;

    SharedState();
    void claim();

    int file_ = -1, own_ = 0;
    Table* table_ = nullptr;
};

} // namespace gpu_sleep::sim
