// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who comes first at the mutex, looking contexts up, and an event for each, looked at for a moment.

#include "intercepted/own_contexts.hpp"

#include "base/units.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/pending_work.hpp"
#include "intercepted/state.hpp"

#include <atomic>
#include <thread>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Counts the threads that wait to hold contexts_mutex() alone.
struct Enders {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< for changes of count
    Condition none_waits;
    std::atomic<unsigned> count{0}; ///< for who holds no mutex
};

void count_ender(int change) {
    auto& enders = immortal<Enders>();
    const MutexLock lock(enders.mutex);
    enders.count += static_cast<unsigned>(change);
    if (enders.count == 0) enders.none_waits.notify_all();
}

} // namespace

ContextsAlone::ContextsAlone() {
    count_ender(1);
    contexts_mutex().lock();
    count_ender(-1);
}

ContextsAlone::~ContextsAlone() {
    contexts_mutex().unlock();
}

bool context_waits_to_end() noexcept {
    return immortal<Enders>().count.load(std::memory_order_relaxed) != 0;
}

void let_contexts_end() noexcept {
    // Bounded, because a thread that holds the mutex may wait for work that needs the caller to go on.
    constexpr Milliseconds k_time_to_leave{5'000};
    auto& enders = immortal<Enders>();
    if (!context_waits_to_end()) return;
    MutexLock lock(enders.mutex);
    enders.none_waits.wait_for(enders.mutex, k_time_to_leave, [&] { return enders.count == 0; });
}

std::shared_mutex& contexts_mutex() noexcept {
    static Immortal<std::shared_mutex> s_mutex;
    return *s_mutex;
}

Primary primary_of(const driver::Api& api, CUdevice device) {
    if (!is_primary_active(api, device)) return {};
    const auto held = driver::PrimaryContext::retain(api, device);
    if (!held) return {};
    Primary primary{held->get(), 0};
    if (api.cuCtxGetId) api.cuCtxGetId(primary.context, &primary.id);
    return primary;
}

CUcontext owner_of_memory_in(CUcontext context) {
    auto& own = immortal<OwnContexts>();
    const MutexLock lock(own.mutex);
    for (const auto& [handle, green] : own.greens)
        if (context && green.context == context) return green.primary;
    return context;
}

bool holds_primary(int device) {
    auto& own = immortal<OwnContexts>();
    const MutexLock lock(own.mutex);
    const auto held = own.primaries.find(device);
    return held != own.primaries.end() && held->second != 0;
}

std::vector<CUcontext> own_contexts_of(int device) {
    auto& own = immortal<OwnContexts>();
    const MutexLock lock(own.mutex);
    std::vector<CUcontext> contexts;
    for (const auto& [context, its_device] : own.contexts)
        if (its_device == device) contexts.push_back(context);
    return contexts;
}

bool enter_primary_context() noexcept {
    bool has_entered = false;
    ignoring_errors([&] {
        const auto with = memory();
        // Whoever ends a context may wait for work that needs what our caller holds.
        const std::shared_lock contexts(contexts_mutex(), std::try_to_lock);
        if (!with || !contexts) return;
        const auto enter = [&](int device) {
            const auto primary = primary_of(with->api(), device);
            return primary.context && with->api().cuCtxPushCurrent(primary.context) == CUDA_SUCCESS;
        };
        for (int device = 0; device < driver::k_max_devices && !has_entered; ++device)
            has_entered = holds_primary(device) && enter(device);
        // The primary contexts of a program that is not intercepted are not recorded.
        for (int device = 0; device < driver::k_max_devices && !has_entered; ++device)
            has_entered = enter(device);
    });
    return has_entered;
}

std::vector<CUcontext> all_contexts(const std::vector<driver::PrimaryContext>& primary) {
    std::vector<CUcontext> contexts;
    {
        auto& own = immortal<OwnContexts>();
        const MutexLock lock(own.mutex);
        for (const auto& [context, device] : own.contexts) contexts.push_back(context);
    }
    for (const auto& context : primary) contexts.push_back(context.get());
    return contexts;
}

bool note_work_on(ProgramMemory& memory, int device, PendingWork& work) {
    const auto& api = memory.api();
    CUcontext current = nullptr;
    bool is_noted = true;
    if (current_device(memory) == device && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS)
        is_noted &= work.note(current);
    if (is_primary_active(api, device)) {
        const auto primary = driver::PrimaryContext::retain(api, device);
        if (primary && holds_primary(device)) is_noted &= work.note(primary->get());
        if (primary && !holds_primary(device))
            is_noted &= work.wait_for(primary->get()); // it ends when we let go
    }
    for (auto* const context : own_contexts_of(device)) is_noted &= work.note(context);
    return is_noted;
}

RunningWork find_running_work(const driver::Api& api) {
    if (!api.cuCtxRecordEvent) return RunningWork::unknown;
    // A thread that ends a context, or begins a capture, is at work.
    const std::shared_lock contexts_stay(contexts_mutex(), std::try_to_lock);
    if (!contexts_stay) return RunningWork::some;
    const auto primary = driver::active_contexts(api);
    if (!primary) return RunningWork::some;
    const auto contexts = all_contexts(*primary);
    PendingWork work(api, PendingWork::Way::to_look);
    {
        const std::shared_lock order(capture_order(), std::try_to_lock);
        if (!order || captures_open() != 0) return RunningWork::some;
        for (auto* const context : contexts)
            if (!work.note(context)) return RunningWork::some;
    }
    constexpr Milliseconds k_moment{5}; // an idle GPU needs some microseconds for an event
    constexpr std::chrono::microseconds k_look{50};
    for (const auto deadline = Clock::now() + k_moment; !work.is_done(); std::this_thread::sleep_for(k_look))
        if (Clock::now() >= deadline) return RunningWork::some;
    return RunningWork::none;
}

} // namespace gpu_sleep::agent::intercepted
