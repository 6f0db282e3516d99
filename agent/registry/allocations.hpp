// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The index of what the program allocated: its own sizes, where the ledger knows ranges. And what of it is
// freed later.

#pragma once

#include "gate/gate.hpp"

#include <cuda.h>

#include <functional>
#include <iterator>
#include <list>
#include <map>

namespace gpu_sleep::agent::registry {

/// Moves the entries that are wanted out of a map, which takes no memory.
template <class Map, class Wanted>
[[nodiscard]] Map move_out(Map& from, const Wanted& wanted) {
    Map taken;
    for (auto next = from.begin(); next != from.end();) {
        const auto here = next++;
        if (wanted(*here)) taken.insert(from.extract(here));
    }
    return taken;
}

/// Makes an entry that is inserted later, which takes no memory then.
template <class Map, class... Parts>
[[nodiscard]] typename Map::node_type make_entry(Parts&&... parts) {
    Map made;
    made.emplace(std::forward<Parts>(parts)...);
    return made.extract(made.begin());
}

struct Allocation {
    CUdeviceptr address = 0; ///< of the allocation
    std::size_t bytes = 0;   ///< that the program asked for
    int device = 0;
    bool is_virtual = false; ///< the program's own mapping: the driver's answers are right while it is awake
    bool is_own = false;     ///< from the C API: a part of a range of which the driver alone would speak
    CUcontext context = nullptr; ///< where it was allocated; null for virtual memory
    CUmemoryPool pool = nullptr;
    unsigned long long id = 0; ///< never used twice
    std::uint64_t access = 0;  ///< of virtual or imported memory: who may read and write it, a bit a device
    unsigned long long handle_types = 0; ///< as which it may be shared, but for plain memory
    bool is_import = false;              ///< memory of another process, by CUDA IPC or a pool
    /// Of plain memory that was freed in a stream's order: when the stream gets there, and in which context.
    CUevent done = nullptr;
    CUcontext freed_in = nullptr;
};

/// What memory that was freed waits for, until when it is in no index.
enum class WaitsFor : std::uint8_t {
    stream,           ///< that of the free to get there: its event says so
    captures,         ///< to end: one may still use memory of a pool
    captures_or_need, ///< the same, unless memory is short: to wait for the work that may use it would break
                      ///< one
};
[[nodiscard]] constexpr WaitsFor waits_for(const Allocation& freed) noexcept {
    if (freed.done) return WaitsFor::stream;
    return freed.pool || freed.is_import ? WaitsFor::captures : WaitsFor::captures_or_need;
}

/// How the program frees an allocation, and what becomes of that then.
struct FreeCall {
    bool is_in_order = false; ///< of a stream
    bool has_context = true;  ///< that stream
    bool captures = false;    ///< that stream does; without one, any
};
enum class Freeing : std::uint8_t { refused, once_captures_end, in_order, at_once };
[[nodiscard]] constexpr Freeing freeing_of(const FreeCall& call) noexcept {
    if (!call.has_context) return Freeing::refused;
    if (call.captures) return Freeing::once_captures_end;
    return call.is_in_order ? Freeing::in_order : Freeing::at_once;
}

/// Thread-safe. Answers while a transaction is under way, for it is apart from the ledger's mutex; its own is
/// the innermost of all and is held over no call.
class Allocations {
public:
    /// Gives it an id and adds it.
    void add(const Allocation& allocation) { add(make_entry<Taken>(allocation.address, allocation)); }
    /// Allocations themselves, which move from place to place without memory.
    using Taken = std::map<CUdeviceptr, Allocation>;
    /// As add(), and takes no memory.
    void add(Taken::node_type record) noexcept {
        const AloneLock lock(mutex_);
        record.key() = record.mapped().address;
        record.mapped().id = next_id_++;
        by_address_.erase(record.key());
        by_address_.insert(std::move(record));
    }
    /// Takes out what begins at `address`, if it is of that kind.
    Taken take(CUdeviceptr address, bool is_virtual, bool is_own = false) noexcept {
        const AloneLock lock(mutex_);
        Taken taken;
        const auto found = by_address_.find(address);
        if (found != by_address_.end() && found->second.is_virtual == is_virtual &&
            found->second.is_own == is_own)
            taken.insert(by_address_.extract(found));
        return taken;
    }
    /// Takes out all that are wanted.
    template <class Wanted>
    Taken take(const Wanted& wanted) noexcept {
        const AloneLock lock(mutex_);
        return move_out(by_address_, [&](const auto& entry) { return wanted(entry.second); });
    }
    /// Puts back what take() returned.
    void put_back(Taken& records) noexcept {
        const AloneLock lock(mutex_);
        by_address_.merge(records);
    }
    template <class Body>
    void change(const Body& body) noexcept {
        const AloneLock lock(mutex_);
        for (auto& [address, allocation] : by_address_) body(allocation);
    }
    /// Changes what begins at `address`, if anything does.
    template <class Body>
    void change(CUdeviceptr address, const Body& body) noexcept {
        const AloneLock lock(mutex_);
        const auto found = by_address_.find(address);
        if (found != by_address_.end()) body(found->second);
    }
    /// Returns the allocation that holds `address`.
    [[nodiscard]] std::optional<Allocation> find(CUdeviceptr address) const {
        const SharedLock lock(mutex_);
        const auto after = by_address_.upper_bound(address);
        if (after == by_address_.begin()) return std::nullopt;
        const auto& allocation = std::prev(after)->second;
        return address - allocation.address < allocation.bytes ? std::optional(allocation) : std::nullopt;
    }
    /// Whether one begins in these bytes, of a range that the agent made: mappings of the program's own are
    /// not meant.
    [[nodiscard]] bool has_ours_in(CUdeviceptr begin, std::size_t bytes) const {
        const SharedLock lock(mutex_);
        for (auto next = by_address_.lower_bound(begin);
             next != by_address_.end() && next->first - begin < bytes; ++next)
            if (!next->second.is_virtual || next->second.is_own) return true;
        return false;
    }
    template <class Wanted>
    [[nodiscard]] std::vector<Allocation> all(const Wanted& wanted) const {
        const SharedLock lock(mutex_);
        std::vector<Allocation> found;
        for (const auto& [address, allocation] : by_address_)
            if (wanted(allocation)) found.push_back(allocation);
        return found;
    }

private:
    /// The driver counts what it has itself from 1 on, and no two of the process may have the same.
    static constexpr unsigned long long k_first_id = 1ULL << 48;

    mutable SharedMutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Taken by_address_ GPU_SLEEP_GUARDED_BY(mutex_);
    unsigned long long next_id_ GPU_SLEEP_GUARDED_BY(mutex_) = k_first_id;
};

/// What is freed or closed later, and what it waits for. Plain memory that was freed in a stream's order
/// waits for its event. What else is freed or closed waits until no capture is open: to wait for the work
/// that may use it would break a capture, and so would not waiting. Calls of the driver wait for the end of a
/// deep sleep. Takes no memory. Thread-safe.
class Later {
public:
    using Calls = std::list<std::function<void()>>;

    void add(Allocations::Taken& all) noexcept {
        const MutexLock lock(mutex_);
        for (const auto& [address, freed] : all)
            if (waits_for(freed) != WaitsFor::stream) any_waits_for_captures_ = true;
        freed_.merge(all);
    }
    /// False: nothing does.
    [[nodiscard]] bool may_wait_for_captures() const noexcept { return any_waits_for_captures_; }
    /// Takes out all that waits for captures.
    [[nodiscard]] Allocations::Taken take_for_captures() noexcept {
        any_waits_for_captures_ = false; // first: what is added meanwhile sets it again
        return take([](const Allocation& each) { return waits_for(each) != WaitsFor::stream; });
    }
    /// Takes out the allocations that are wanted.
    template <class Wanted>
    [[nodiscard]] Allocations::Taken take(const Wanted& wanted) noexcept {
        const MutexLock lock(mutex_);
        return move_out(freed_, [&](const auto& each) { return wanted(each.second); });
    }
    template <class Change>
    void change(const Change& body) noexcept {
        const MutexLock lock(mutex_);
        for (auto& [address, freed] : freed_) body(freed);
    }
    /// Has the call wait for the end of a deep sleep. False: there is none.
    [[nodiscard]] bool put_off(Calls& call) noexcept {
        const MutexLock lock(mutex_);
        // Looked at under the mutex: who sees it last is still in time for take_call().
        if (!gate::Gate::holds_all()) return false;
        calls_.splice(calls_.end(), call);
        return true;
    }
    /// Takes out the first call that was put off; none: there is none any more.
    [[nodiscard]] Calls take_call() noexcept {
        const MutexLock lock(mutex_);
        Calls first;
        if (!calls_.empty()) first.splice(first.end(), calls_, calls_.begin());
        return first;
    }

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Allocations::Taken freed_ GPU_SLEEP_GUARDED_BY(mutex_);
    Calls calls_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::atomic<bool> any_waits_for_captures_{false}; ///< perhaps
};

} // namespace gpu_sleep::agent::registry
