// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who makes room for requests from outside, by commands, one request after another.

#pragma once

#include "fleet.hpp"

#include <condition_variable>

namespace gpu_sleep::test {

/// Puts the server to sleep that was asked longest ago, until there is room for the one whose request has
/// waited longest. Thread-safe.
class Controller {
public:
    Controller(const TurnOptions& options, const std::deque<Server>& servers, Findings& findings);
    Controller(const Controller&) = delete;
    Controller& operator=(const Controller&) = delete;
    ~Controller();

    void enqueue(unsigned server);
    /// Its request was answered, or nobody waits for it any more.
    void forget(unsigned server);

private:
    void run();
    /// Returns once its request is answered.
    void serve(unsigned server);
    [[nodiscard]] bool still_waits(unsigned server);
    /// One try; afterwards it may be awake.
    void make_room(const Server& server);

    const TurnOptions& options_;
    const std::deque<Server>& servers_;
    Findings& findings_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<unsigned> queue_;
    bool stops_ = false;
    std::thread thread_;
};

} // namespace gpu_sleep::test
