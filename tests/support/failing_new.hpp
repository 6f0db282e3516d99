// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that runs out when a test says so. For programs that have failing_new.cpp among their sources.

#pragma once

#include <atomic>

namespace gpu_sleep::test {

/// How many of this thread's next allocations succeed until one fails; negative: none does.
extern constinit thread_local long t_allocations_left;

/// The same of all threads together, while `counts`; if it `lasts`, all fail from then on.
struct AllocationsOfAll {
    std::atomic<bool> counts{false}, lasts{false};
    std::atomic<long> left{0};
};
extern constinit AllocationsOfAll g_allocations;

} // namespace gpu_sleep::test
