// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for work would break a capture, and so would not waiting.

#include "intercepted/waiting_frees.hpp"

#include "base/memory.hpp"
#include "common/lock_order.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/ipc.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/pending_work.hpp"
#include "intercepted/trimming.hpp"

#include <map>
#include <memory>
#include <shared_mutex>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Frees that have to wait: waiting for work would break a capture, and so would not waiting.
struct Later {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUdeviceptr, Allocation> allocations GPU_SLEEP_GUARDED_BY(mutex);
};

/// Some of them, while they are freed. What is not by its end waits again: memory was short, say.
class Due {
public:
    Due() = default;
    Due(const Due&) = delete;
    Due& operator=(const Due&) = delete;
    ~Due() { put_back(); }

    void take(const std::function<bool(const Allocation&)>& wanted) {
        auto& later = immortal<Later>();
        const MutexLock lock(later.mutex);
        allocations_ = move_out(later.allocations, [&](const auto& entry) { return wanted(entry.second); });
    }
    void give_back(ProgramMemory& memory) {
        for (; !allocations_.empty(); allocations_.erase(allocations_.begin()))
            give_allocation(memory, allocations_.begin()->second);
    }
    void put_back() noexcept {
        auto& later = immortal<Later>();
        const MutexLock lock(later.mutex);
        later.allocations.merge(allocations_);
    }
    /// Those that they were made in are gone, and all work in them.
    void forget_contexts() noexcept {
        for (auto& [address, allocation] : allocations_) allocation.context = nullptr;
    }
    [[nodiscard]] auto begin() const { return allocations_.begin(); }
    [[nodiscard]] auto end() const { return allocations_.end(); }

private:
    std::map<CUdeviceptr, Allocation> allocations_;
};

} // namespace

// Memory of a pool outlives the context that it was made in, and other contexts of its device may use it too.
bool note_work(ProgramMemory& memory, const Allocation& allocation, PendingWork& work) {
    auto devices = allocation.access;
    if (allocation.pool) devices |= driver::DeviceMask{1} << allocation.device;
    bool is_noted = allocation.pool || work.note(allocation.context);
    for (int device = 0; device < driver::k_max_devices && is_noted; ++device)
        if ((devices >> device & 1) != 0) is_noted = note_work_on(memory, device, work);
    return is_noted;
}

void Freeing::free_later() noexcept {
    if (record_.empty()) return;
    auto& later = immortal<Later>();
    const MutexLock lock(later.mutex);
    later.allocations.insert(std::move(record_));
}

PendingRemoval take_waiting_of(ProgramMemory& memory, const std::function<bool(const Allocation&)>& dies) {
    const auto due = std::make_shared<Due>();
    auto gone = [=, &memory] {
        due->forget_contexts();
        due->give_back(memory);
    };
    PendingRemoval taken{std::move(gone), [=] { due->put_back(); }};
    due->take(dies); // last: it takes no memory
    return taken;
}

void free_waiting() noexcept {
    close_waiting();
    ignoring_errors([] {
        auto& later = immortal<Later>();
        {
            const MutexLock lock(later.mutex);
            if (later.allocations.empty() || captures_open() != 0) return;
        }
        const auto with = memory();
        if (!with) return;
        let_contexts_end();
        // From here on none of their contexts ends; those that ended took theirs with them.
        const std::shared_lock contexts(contexts_mutex());
        Due due;
        PendingWork work(with->api());
        {
            const std::shared_lock order(capture_order());
            if (captures_open() != 0) return;
            due.take([](const Allocation&) { return true; });
            for (const auto& [address, allocation] : due) note_work(*with, allocation, work);
        }
        work.wait();
        due.give_back(*with);
    });
}

bool free_amid_captures(ProgramMemory& memory) noexcept {
    bool is_any_free = false;
    ignoring_errors([&] {
        let_contexts_end();
        const std::shared_lock contexts(contexts_mutex());
        Due due;
        PendingWork work(memory.api(), PendingWork::Way::amid_captures);
        // What is of a pool may have been freed in a stream that captures: until then it is in use.
        due.take([](const Allocation& allocation) { return !allocation.pool; });
        for (const auto& [address, allocation] : due)
            if (!note_work(memory, allocation, work)) return;
        work.wait();
        is_any_free = due.begin() != due.end();
        due.give_back(memory);
    });
    return is_any_free;
}

} // namespace gpu_sleep::agent::intercepted
