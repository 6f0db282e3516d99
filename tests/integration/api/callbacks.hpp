// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Callbacks that are functions of the test. They run on a thread of the agent's, where nothing may be
// checked: what they find is for the test to look at afterwards.

#pragma once

#include "support/gpu.hpp"

#include <chrono>
#include <functional>
#include <future>
#include <utility>

namespace gpu_sleep::test {

inline constexpr std::chrono::milliseconds k_moment{100}; ///< time enough to do what must not be done

/// Registered until the end. Either function may be empty.
class Callbacks {
public:
    using Function = std::function<int(const gpu_sleep_event*)>;

    explicit Callbacks(Function before_sleep, Function after_wake = {}, std::uint32_t deadline_ms = 0)
        : before_sleep_(std::move(before_sleep)), after_wake_(std::move(after_wake)) {
        const gpu_sleep_callback before = [](const gpu_sleep_event* event, void* self) {
            return static_cast<Callbacks*>(self)->before_sleep_(event);
        };
        const gpu_sleep_callback after = [](const gpu_sleep_event* event, void* self) {
            return static_cast<Callbacks*>(self)->after_wake_(event);
        };
        check(gpu_sleep_add_callback(before_sleep_ ? before : nullptr, after_wake_ ? after : nullptr, this,
                                     deadline_ms, &id_));
    }
    Callbacks(const Callbacks&) = delete;
    Callbacks& operator=(const Callbacks&) = delete;
    ~Callbacks() { gpu_sleep_remove_callback(id_); }

    [[nodiscard]] int id() const noexcept { return id_; }

private:
    Function before_sleep_;
    Function after_wake_;
    int id_ = 0;
};

inline void sleep(const char* tags = nullptr) {
    check(gpu_sleep_sleep(1, tags, 0));
}

inline void wake(const char* tags = nullptr) {
    check(gpu_sleep_wake(tags, 0));
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
