// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The contexts that the program made or holds, and over which mutex they live.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"

#include <cuda.h>

#include <atomic>
#include <map>
#include <optional>
#include <shared_mutex>
#include <vector>

namespace gpu_sleep::agent::registry {

struct Context {
    std::optional<int> device; ///< of one that the program made; nothing for a primary or a green one
    /// Events without timing, to be used again: making one and ending it takes the driver as long as all else
    /// that a free asks of it.
    std::vector<CUevent> events;
};

struct Green {
    CUcontext context = nullptr; ///< null where the driver did not say
    CUcontext primary = nullptr;
    CUdevice device = 0;
};

/// Thread-safe. Records move in and out without memory: what takes some comes before the driver is asked.
/// Where records are joined and memory is short, events are lost.
class Contexts {
public:
    /// Held alone while a context ends, and shared while we work in contexts that the program may end
    /// meanwhile: touching one that is gone corrupts memory. Shared also while we hold a primary context,
    /// unless the gate is shut for a transaction: our letting go must not be what ends it. It comes before
    /// the mutex of the pools. A thread may hold it shared twice, as one that moves a running program does:
    /// glibc's lets readers pass writers that wait. Source: pthread_rwlockattr_setkind_np(3).
    std::shared_mutex alive;
    /// Waits until nobody waits to hold it alone, or for a bounded time. Before it is held shared to wait for
    /// the GPU: many who do so one after the other would keep a context from ending for ever.
    void let_end() noexcept;
    /// Whether somebody waits to hold it alone, for whoever holds it shared for long.
    [[nodiscard]] bool one_waits_to_end() const noexcept {
        return enders_.load(std::memory_order_relaxed) != 0;
    }
    /// Holds `alive` alone, with precedence over those who call let_end().
    class Alone {
    public:
        explicit Alone(Contexts& contexts);
        Alone& operator=(Alone&&) = delete;
        ~Alone() { contexts_.alive.unlock(); }

    private:
        Contexts& contexts_;
    };

    using Record = std::map<CUcontext, Context>::node_type;
    [[nodiscard]] static Record make_record();
    /// The program made the context.
    void add(Record record, CUcontext context, int device) noexcept;
    [[nodiscard]] Record take(CUcontext context) noexcept;
    void put_back(Record record) noexcept;
    /// Those that the program made, on the device or on any. May throw for want of memory.
    [[nodiscard]] std::vector<CUcontext> made_on(std::optional<int> device) const;

    /// An event of the context, which exists; null where one has to be made. May throw for want of memory.
    [[nodiscard]] CUevent take_event(CUcontext context);
    /// Takes one back, unless its context has ended meanwhile, and the event with it. Where memory is short
    /// the event is lost.
    void give_event(CUcontext context, CUevent event) noexcept;

    using GreenRecord = std::map<CUgreenCtx, Green>::node_type;
    [[nodiscard]] static GreenRecord make_green();
    /// The program made it, and by it holds its device's primary context once more, for which
    /// prepare_hold() took memory.
    void add(GreenRecord record, CUgreenCtx handle, const Green& green) noexcept;
    [[nodiscard]] GreenRecord take(CUgreenCtx handle) noexcept;
    void put_back(GreenRecord record) noexcept;
    /// It is about to end, and its events are its primary context's.
    void hand_events_on(const Green& green) noexcept;
    /// The context whose end takes what is allocated in `context`: the primary one of a green one, else
    /// itself.
    [[nodiscard]] CUcontext owner_of_memory_in(CUcontext context) const noexcept;

    /// How often the program holds a device's primary context, by green ones too. A reset changes nothing of
    /// that.
    void prepare_hold(CUdevice device);
    void hold(CUdevice device) noexcept;
    struct LettingGo {
        bool was_held = false; ///< else the driver refuses to release it
        bool is_last = false;
    };
    LettingGo let_go(CUdevice device) noexcept;
    /// The same, unless it would be the last time. Whether it was done.
    [[nodiscard]] bool let_go_of_one(CUdevice device) noexcept;
    [[nodiscard]] bool holds(CUdevice device) const noexcept;

private:
    void count_ender(int change);

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUcontext, Context> contexts_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::map<CUgreenCtx, Green> greens_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::map<CUdevice, unsigned> holds_ GPU_SLEEP_GUARDED_BY(mutex_);
    Mutex enders_mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< for changes of enders_
    Condition none_waits_;
    std::atomic<unsigned> enders_{0}; ///< threads that wait to hold `alive` alone
};

} // namespace gpu_sleep::agent::registry
