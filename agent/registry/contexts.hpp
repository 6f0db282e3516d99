// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The contexts that the program made or holds, over which mutex they live, and the graph captures in their
// streams.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/memory.hpp"
#include "gate/gate.hpp"

#include <tuple>

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

    using Records = std::map<CUcontext, Context>;
    using Record = Records::node_type;
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

    using Greens = std::map<CUgreenCtx, Green>;
    using GreenRecord = Greens::node_type;
    /// The program made it, and by it holds its device's primary context once more.
    void add(GreenRecord record, CUgreenCtx handle, const Green& green) noexcept;
    [[nodiscard]] std::optional<Green> find(CUgreenCtx handle) const noexcept;
    void forget(CUgreenCtx handle) noexcept;
    /// It is about to end, and its events are its primary context's.
    void hand_events_on(const Green& green) noexcept;
    /// The context whose end takes what is allocated in `context`: the primary one of a green one, else
    /// itself.
    [[nodiscard]] CUcontext owner_of_memory_in(CUcontext context) const noexcept;

    /// How often the program holds a device's primary context, by green ones too. A reset changes nothing of
    /// that.
    void hold(CUdevice device) noexcept;
    struct LettingGo {
        bool was_held = false; ///< else the driver refuses to release it
        bool is_last = false;
    };
    /// Changes nothing for the last hold, unless `also_last`.
    LettingGo let_go(CUdevice device, bool also_last = true) noexcept;
    [[nodiscard]] bool holds(CUdevice device) noexcept;

private:
    void count_ender(int change);
    /// Null beyond the devices that can have any.
    unsigned* holds_of(CUdevice device) noexcept GPU_SLEEP_REQUIRES(mutex_);

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Records contexts_ GPU_SLEEP_GUARDED_BY(mutex_);
    Greens greens_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::array<unsigned, driver::k_max_devices> holds_ GPU_SLEEP_GUARDED_BY(mutex_){};
    Mutex enders_mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< for changes of enders_
    Condition none_waits_;
    std::atomic<unsigned> enders_{0}; ///< threads that wait to hold `alive` alone
};

/// Graph captures under way. Thread-safe.
class Captures {
public:
    /// A stream in which something is captured. The context and the thread count for per-thread streams only:
    /// all others have handles of their own.
    using Key = std::tuple<CUstream, CUcontext, std::uint64_t>;
    struct Capture {
        std::uint64_t number = 0; ///< never used twice
        CUcontext context = nullptr;
        const gate::Seat* seat = nullptr; ///< of the thread that began it; after its end perhaps another's
        bool any_may_end = false;         ///< and not that thread alone
    };
    using Taken = std::map<Key, Capture>;

    /// Held shared from the look for captures until a context's work is noted (PendingWork), which would
    /// break one; alone while a capture is noted, before it begins. Nobody waits under it: a capture must not
    /// begin any later for what other threads do. Comes after the contexts' mutex.
    std::shared_mutex order;

    /// Notes a capture, which the calling thread alone may end or any, before it begins. Returns its number;
    /// 0 if the stream has one already, which goes on. May throw for want of memory.
    [[nodiscard]] std::uint64_t note(const Key& key, CUcontext context, bool any_may_end);
    /// The number of the stream's capture; 0 without one.
    [[nodiscard]] std::uint64_t number_of(const Key& key) const noexcept;
    /// The capture is over.
    void forget(const Key& key, std::uint64_t number) noexcept;
    /// The thread is over, and the captures in its own streams with it. Whether there were any.
    [[nodiscard]] bool forget_thread(std::uint64_t thread) noexcept;
    /// Takes out the captures of the stream, or of the context's streams. Takes no memory.
    [[nodiscard]] Taken take(CUstream stream) noexcept;
    [[nodiscard]] Taken take(CUcontext context) noexcept;
    void put_back(Taken& taken) noexcept;

    /// How many are open; for who holds no mutex.
    [[nodiscard]] unsigned count() const noexcept { return count_.load(std::memory_order_seq_cst); }
    /// Whether one is open that the calling thread began.
    [[nodiscard]] bool has_own() const noexcept;
    /// The streams in which the calling thread began those that it alone may end: as many as fit. Returns how
    /// many.
    [[nodiscard]] std::size_t own_streams(std::span<CUstream> streams) const noexcept;
    /// Returns the sleeping memory for which threads with an open capture wait at the gate: such a capture
    /// cannot end before a wake. Empty optional if no such thread waits; an empty list if it is not known for
    /// what memory. May throw for want of memory.
    [[nodiscard]] std::optional<std::vector<gate::Named::Span>> wait_for() const;

private:
    template <class Wanted>
    Taken take_if(const Wanted& wanted) noexcept;

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Taken open_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::uint64_t last_number_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::atomic<unsigned> count_{0};
};

} // namespace gpu_sleep::agent::registry
