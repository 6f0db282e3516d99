// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting the agent, and again some seconds later if that fails.

#include "lifecycle/start.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "common/interception.hpp"
#include "lifecycle/agent.hpp"

namespace gpu_sleep::agent::lifecycle {
namespace {

constexpr Clock::duration k_start_again = std::chrono::seconds(3);

/// When a start that failed is to be tried again, on the clock; 0 when none failed.
std::atomic<Clock::rep> g_next_start{0};

} // namespace

void start() noexcept {
    const auto started = guarded([] { return Agent::instance().start(); });
    if (started) {
        if (g_next_start.exchange(0) != 0) log::warning("the process can be put to sleep now");
        return;
    }
    const auto next = (Clock::now() + k_start_again).time_since_epoch().count();
    if (g_next_start.exchange(next) == 0)
        log::error("this process cannot be put to sleep yet: {}; the agent retries as memory is allocated",
                   started.error().message);
}

bool intercepts_allocations() noexcept {
    if (!intercepts()) return false;
    auto next = g_next_start.load(std::memory_order_relaxed);
    const auto now = Clock::now().time_since_epoch();
    // One thread at a time, whatever comes of it.
    if (next != 0 && now.count() >= next &&
        g_next_start.compare_exchange_strong(next, (now + k_start_again).count()))
        start();
    return true;
}

} // namespace gpu_sleep::agent::lifecycle
