// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sleeps of the program's own, and what waits for them.

#pragma once

#include "support/callbacks.hpp"
#include "support/gpu.hpp"

namespace gpu_sleep::test {

inline constexpr std::chrono::milliseconds k_moment{100}; ///< time enough to do what must not be done

inline void sleep(const char* tags = nullptr) {
    check(gpu_sleep_sleep(1, tags, 0));
}

inline void wake(const char* tags = nullptr) {
    check(gpu_sleep_wake(tags, 0));
}

inline void cycle() {
    sleep();
    wake();
}

/// Whether `future` is not ready, given a moment.
template <class T>
[[nodiscard]] bool waits(const std::future<T>& future) {
    return future.wait_for(k_moment) == std::future_status::timeout;
}

/// Whether `future` becomes ready.
template <class T>
[[nodiscard]] bool ends(const std::future<T>& future) {
    return future.wait_for(k_patience) == std::future_status::ready;
}

} // namespace gpu_sleep::test
