// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The mutex over which contexts live, and who comes first at it.

#include "intercepted/contexts_lock.hpp"

#include "base/immortal.hpp"
#include "common/lock_order.hpp"

#include <atomic>
#include <shared_mutex>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Those who wait to hold contexts_mutex() alone.
struct Enders {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< for changes of count
    Condition none_waits;
    std::atomic<unsigned> count{0}; ///< for who holds no mutex
    static Enders& instance() {
        static Immortal<Enders> s_enders;
        return *s_enders;
    }
};

void count_ender(int change) {
    auto& enders = Enders::instance();
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

void let_contexts_end() noexcept {
    // Who waits may have to go on before what those wait for is over that hold the mutex.
    constexpr Milliseconds k_patience{5'000};
    auto& enders = Enders::instance();
    if (enders.count.load(std::memory_order_relaxed) == 0) return;
    MutexLock lock(enders.mutex);
    enders.none_waits.wait_for(enders.mutex, k_patience, [&] { return enders.count == 0; });
}

std::shared_mutex& contexts_mutex() noexcept {
    static Immortal<std::shared_mutex> s_mutex;
    return *s_mutex;
}

} // namespace gpu_sleep::agent::intercepted
