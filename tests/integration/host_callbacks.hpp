// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Callbacks of the host program, which behave as a test wants them to.

#pragma once

#include "host_gpu.hpp"

#include <condition_variable>
#include <istream>
#include <mutex>
#include <vector>

namespace gpu_sleep::test {

/// What is registered at a time, mostly one pair of callbacks. Thread-safe but for install(); must outlive
/// the agent.
class HostCallbacks {
public:
    /// Reads "KIND [DEADLINE_MS]" and registers callbacks in place of those before. KIND is
    ///   none      no callbacks at all
    ///   obey      both return 0
    ///   linger    before a sleep: returns after let_go(), at the latest after a minute
    ///   touch     before a sleep: gives the GPU work
    ///   named     by name: abort, reset_prefix_cache (replies what it was told), broken, linger
    [[nodiscard]] Result<std::string> install(std::istream& words);

    /// Ends the waiting of `linger`.
    [[nodiscard]] Result<std::string> let_go();

    /// "BEFORE AFTER LEVEL DROPPED": how often each was called, and what the last one was told.
    [[nodiscard]] Result<std::string> calls();

private:
    static int before_sleep(const gpu_sleep_event* event, void* self);
    static int reply(const gpu_sleep_event* event, void* self);
    static int after_wake(const gpu_sleep_event* event, void* self);
    void note(const gpu_sleep_event& event, int& count);
    [[nodiscard]] int linger();

    std::mutex mutex_; ///< guards all below
    std::condition_variable gone_;
    std::string kind_;
    bool may_go_ = false;
    std::vector<int> ids_;
    int before_ = 0, after_ = 0, level_ = 0;
    std::size_t dropped_ = 0;
};

} // namespace gpu_sleep::test
