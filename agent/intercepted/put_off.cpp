// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Remembering it.

#include "intercepted/put_off.hpp"

#include "base/guard.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/context.hpp"
#include "gate/gate.hpp"

#include <list>
#include <utility>

namespace gpu_sleep::agent::intercepted {
namespace {

struct PutOff {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::list<std::function<void()>> frees GPU_SLEEP_GUARDED_BY(mutex);
    bool lets GPU_SLEEP_GUARDED_BY(mutex) = false;
    std::optional<DeviceMemory> memory GPU_SLEEP_GUARDED_BY(mutex);

    static PutOff& instance() noexcept {
        static auto& all = *new PutOff; // never destroyed: calls come until the very end
        return all;
    }
};

} // namespace

bool put_off(Object kind, std::uint64_t handle, std::function<void()> free) noexcept {
    auto& all = PutOff::instance();
    {
        const MutexLock lock(all.mutex);
        if (!all.lets) return false;
    }
    std::list<std::function<void()>> one;
    const auto remembered = guarded([&]() -> Result<void> {
        one.push_back(std::move(free));
        return {};
    });
    if (!remembered || !object_ends(kind, handle)) return false;
    const MutexLock lock(all.mutex);
    // Looked at under the mutex: who sees it last is still in time for free_what_was_put_off().
    if (!gate::Gate::is_deep()) return false;
    all.frees.splice(all.frees.end(), one);
    return true;
}

void let_put_off(bool lets) noexcept {
    auto& all = PutOff::instance();
    const MutexLock lock(all.mutex);
    all.lets = lets;
}

void free_what_was_put_off(const driver::Api& api) noexcept {
    auto& all = PutOff::instance();
    {
        const MutexLock lock(all.mutex);
        if (all.frees.empty()) return;
    }
    std::optional<driver::PrimaryContext> alive;
    ignoring_errors([&] {
        if (auto found = driver::first_active_context(api)) alive = *std::move(found);
    });
    const driver::CurrentContext current(api, alive ? alive->get() : nullptr);
    for (;;) {
        std::function<void()> free;
        {
            const MutexLock lock(all.mutex);
            if (all.frees.empty()) return;
            free = std::move(all.frees.front());
            all.frees.pop_front();
        }
        ignoring_errors([&] { free(); });
    }
}

void set_memory_while_deep(std::optional<DeviceMemory> memory) noexcept {
    auto& all = PutOff::instance();
    const MutexLock lock(all.mutex);
    all.memory = memory;
}

std::optional<DeviceMemory> memory_while_deep() noexcept {
    auto& all = PutOff::instance();
    const MutexLock lock(all.mutex);
    return gate::Gate::is_deep() ? all.memory : std::nullopt;
}

} // namespace gpu_sleep::agent::intercepted
