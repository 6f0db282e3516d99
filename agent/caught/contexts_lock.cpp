// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The mutex over which contexts live, and who comes first at it.

#include "caught/contexts_lock.hpp"

#include "base/immortal.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

namespace gpu_sleep::agent::caught {
namespace {

/// Those who wait to hold contexts_mutex() alone.
struct Enders {
    std::mutex mutex; ///< guards changes of count
    std::condition_variable none_waits;
    std::atomic<unsigned> count{0}; ///< for who holds no mutex
    static Enders& instance() {
        static Immortal<Enders> s_enders;
        return *s_enders;
    }
};

void count_ender(int change) {
    auto& enders = Enders::instance();
    const std::lock_guard lock(enders.mutex);
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
    std::unique_lock lock(enders.mutex);
    enders.none_waits.wait_for(lock, k_patience, [&] { return enders.count == 0; });
}

std::shared_mutex& contexts_mutex() noexcept {
    static Immortal<std::shared_mutex> s_mutex;
    return *s_mutex;
}

} // namespace gpu_sleep::agent::caught
