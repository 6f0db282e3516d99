// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The contexts that the program made or holds, over which mutex they live, and the graph captures in their
// streams.

#pragma once

#include "driver/memory.hpp"
#include "registry/allocations.hpp"

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
    void let_end() noexcept {
        // Bounded, because a thread that holds the mutex may wait for work that needs the caller to go on.
        constexpr Milliseconds k_time_to_leave{5'000};
        if (!one_waits_to_end()) return;
        MutexLock lock(enders_mutex_);
        none_waits_.wait_for(enders_mutex_, k_time_to_leave, [this] { return enders_ == 0; });
    }
    /// Holds it shared, after let_end().
    [[nodiscard]] std::shared_lock<std::shared_mutex> stay() {
        let_end();
        return std::shared_lock(alive);
    }
    /// Whether somebody waits to hold it alone, for whoever holds it shared for long.
    [[nodiscard]] bool one_waits_to_end() const noexcept {
        return enders_.load(std::memory_order_relaxed) != 0;
    }
    /// Runs `end` while `alive` is held alone, with precedence over those who call let_end().
    template <class End>
    auto alone(const End& end) {
        count_ender(1);
        const std::unique_lock lock(alive);
        count_ender(-1);
        return end();
    }

    using Records = std::map<CUcontext, Context>;
    using Record = Records::node_type;
    /// The program made the context.
    void add(Record record, CUcontext context, int device) noexcept {
        record.key() = context;
        record.mapped().device = device;
        const MutexLock lock(mutex_);
        contexts_.erase(context);
        contexts_.insert(std::move(record));
    }
    [[nodiscard]] Record take(CUcontext context) noexcept {
        const MutexLock lock(mutex_);
        return contexts_.extract(context);
    }
    void put_back(Record record) noexcept {
        if (record.empty()) return;
        const MutexLock lock(mutex_);
        auto [place, is_back, other] = contexts_.insert(std::move(record));
        if (is_back) return;
        // An event was taken meanwhile, which made a record anew.
        place->second.device = other.mapped().device;
        std::swap(place->second.events, other.mapped().events);
        give_events(place->second, other.mapped().events);
    }
    /// Those that the program made, on the device or on any. May throw for want of memory.
    [[nodiscard]] std::vector<CUcontext> made_on(std::optional<int> device) const {
        const MutexLock lock(mutex_);
        std::vector<CUcontext> found;
        for (const auto& [handle, context] : contexts_)
            if (context.device && (!device || context.device == device)) found.push_back(handle);
        return found;
    }

    /// An event of the context, which exists; null where one has to be made. May throw for want of memory.
    [[nodiscard]] CUevent take_event(CUcontext context) {
        const MutexLock lock(mutex_);
        auto& events = contexts_[context].events;
        if (events.empty()) return nullptr;
        auto* const event = events.back();
        events.pop_back();
        return event;
    }
    /// Takes one back, unless its context has ended meanwhile, and the event with it. Where memory is short
    /// the event is lost.
    void give_event(CUcontext context, CUevent event) noexcept {
        ignoring_errors([&] {
            const MutexLock lock(mutex_);
            const auto found = contexts_.find(context);
            if (found != contexts_.end()) found->second.events.push_back(event);
        });
    }

    using Greens = std::map<CUgreenCtx, Green>;
    using GreenRecord = Greens::node_type;
    /// The program made it, and by it holds its device's primary context once more.
    void add(GreenRecord record, CUgreenCtx handle, const Green& green) noexcept {
        record.key() = handle;
        record.mapped() = green;
        const MutexLock lock(mutex_);
        greens_.erase(handle);
        greens_.insert(std::move(record)); // its end lets go
        if (auto* const holds = holds_of(green.device)) ++*holds;
    }
    [[nodiscard]] std::optional<Green> find(CUgreenCtx handle) const noexcept {
        const MutexLock lock(mutex_);
        const auto found = greens_.find(handle);
        return found == greens_.end() ? std::nullopt : std::optional(found->second);
    }
    void forget(CUgreenCtx handle) noexcept {
        const MutexLock lock(mutex_);
        greens_.erase(handle);
    }
    /// It is about to end, and its events are its primary context's.
    void hand_events_on(const Green& green) noexcept {
        const MutexLock lock(mutex_);
        auto taken = contexts_.extract(green.context);
        if (!taken) return;
        taken.key() = green.primary;
        const auto [primary, is_first, again] = contexts_.insert(std::move(taken));
        if (!is_first) give_events(primary->second, again.mapped().events);
    }
    /// The context whose end takes what is allocated in `context`: the primary one of a green one, else
    /// itself.
    [[nodiscard]] CUcontext owner_of_memory_in(CUcontext context) const noexcept {
        const MutexLock lock(mutex_);
        for (const auto& [handle, green] : greens_)
            if (context && green.context == context) return green.primary;
        return context;
    }

    /// How often the program holds a device's primary context, by green ones too. A reset changes nothing of
    /// that.
    void hold(CUdevice device) noexcept {
        const MutexLock lock(mutex_);
        if (auto* const holds = holds_of(device)) ++*holds;
    }
    struct LettingGo {
        bool was_held = false; ///< else the driver refuses to release it
        bool is_last = false;
    };
    /// Changes nothing for the last hold, unless `also_last`.
    LettingGo let_go(CUdevice device, bool also_last = true) noexcept {
        const MutexLock lock(mutex_);
        auto* const holds = holds_of(device);
        const LettingGo going{holds && *holds > 0, !holds || *holds <= 1};
        if (going.was_held && (also_last || !going.is_last)) --*holds;
        return going;
    }
    [[nodiscard]] bool holds(CUdevice device) noexcept {
        const MutexLock lock(mutex_);
        const auto* const holds = holds_of(device);
        return holds && *holds != 0;
    }

private:
    /// Where memory is short the events are lost.
    static void give_events(Context& to, const std::vector<CUevent>& events) noexcept {
        ignoring_errors([&] { to.events.insert(to.events.end(), events.begin(), events.end()); });
    }
    void count_ender(int change) {
        const MutexLock lock(enders_mutex_);
        enders_ += static_cast<unsigned>(change);
        if (enders_ == 0) none_waits_.notify_all();
    }
    /// Null beyond the devices that can have any.
    unsigned* holds_of(CUdevice device) noexcept GPU_SLEEP_REQUIRES(mutex_) {
        return device >= 0 && device < driver::k_max_devices ? &holds_[static_cast<std::size_t>(device)]
                                                             : nullptr;
    }

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
    [[nodiscard]] std::uint64_t note(const Key& key, CUcontext context, bool any_may_end) {
        const MutexLock lock(mutex_);
        auto [place, is_new] = open_.try_emplace(key);
        // One that is there already, and goes on, must not be taken for this one.
        place->second = {++last_number_, context, gate::t_seat, any_may_end};
        count_ = static_cast<unsigned>(open_.size());
        return is_new ? last_number_ : 0;
    }
    /// The number of the stream's capture; 0 without one.
    [[nodiscard]] std::uint64_t number_of(const Key& key) const noexcept {
        const MutexLock lock(mutex_);
        const auto found = open_.find(key);
        return found == open_.end() ? 0 : found->second.number;
    }
    /// The capture is over.
    void forget(std::uint64_t number) noexcept {
        take_if([=](const auto& each) { return each.second.number == number; });
    }
    /// The thread is over, and the captures in its own streams with it. Whether there were any.
    [[nodiscard]] bool forget_thread(std::uint64_t thread) noexcept {
        return !take_if([=](const auto& each) { return std::get<2>(each.first) == thread; }).empty();
    }
    /// Takes out the captures of the stream, or of the context's streams. Takes no memory.
    [[nodiscard]] Taken take(CUstream stream) noexcept {
        return take_if([=](const auto& each) { return std::get<0>(each.first) == stream; });
    }
    [[nodiscard]] Taken take(CUcontext context) noexcept {
        return take_if([=](const auto& each) { return each.second.context == context; });
    }
    void put_back(Taken& taken) noexcept {
        const MutexLock lock(mutex_);
        open_.merge(taken);
        count_ = static_cast<unsigned>(open_.size());
    }

    /// How many are open; for who holds no mutex.
    [[nodiscard]] unsigned count() const noexcept { return count_.load(std::memory_order_seq_cst); }
    /// Whether one is open that the calling thread began.
    [[nodiscard]] bool has_own() const noexcept {
        if (count() == 0 || !gate::t_seat) return false;
        const MutexLock lock(mutex_);
        return std::any_of(open_.begin(), open_.end(),
                           [](const auto& capture) { return capture.second.seat == gate::t_seat; });
    }
    /// The streams in which the calling thread began those that it alone may end: as many as fit. Returns how
    /// many.
    [[nodiscard]] std::size_t own_streams(std::span<CUstream> streams) const noexcept {
        if (count() == 0 || !gate::t_seat) return 0;
        const MutexLock lock(mutex_);
        std::size_t found = 0;
        for (const auto& [key, capture] : open_) {
            if (found == streams.size()) break;
            if (capture.seat == gate::t_seat && !capture.any_may_end) streams[found++] = std::get<0>(key);
        }
        return found;
    }
    /// Returns the sleeping memory for which threads with an open capture wait at the gate: such a capture
    /// cannot end before a wake. Empty optional if no such thread waits; an empty list if it is not known for
    /// what memory. May throw for want of memory.
    [[nodiscard]] std::optional<std::vector<gate::Named::Span>> wait_for() const {
        std::vector<const gate::Seat*> seats;
        {
            const MutexLock lock(mutex_);
            for (const auto& [key, capture] : open_) seats.push_back(capture.seat);
        }
        for (const auto* seat : seats)
            if (auto spans = gate::Gate::instance().sleeping_for(seat)) return spans;
        return std::nullopt;
    }

private:
    template <class Wanted>
    Taken take_if(const Wanted& wanted) noexcept {
        const MutexLock lock(mutex_);
        auto taken = move_out(open_, wanted);
        count_ = static_cast<unsigned>(open_.size());
        return taken;
    }

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Taken open_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::uint64_t last_number_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::atomic<unsigned> count_{0};
};

} // namespace gpu_sleep::agent::registry
