// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The wakes that touches ask for: GPU work of the program that waits for sleeping memory.

#pragma once

#include "model/model.hpp"
#include "operations/operations.hpp"
#include "server/server.hpp"

namespace gpu_sleep::agent::lifecycle {

/// Asks the operations thread for such a wake, and says why the process could not be woken. Each kind of
/// trouble is said once: who takes turns waits for them again and again. Thread-safe.
class TouchWaker {
public:
    /// `request`: what a touch asks for. Both outlive it.
    TouchWaker(operations::Operations& operations, server::Server& server, const model::WakeRequest& request)
        : operations_(operations), server_(server), request_(request) {}

    /// Returns at once. Asks for nothing while an earlier wake is under way.
    void wake();
    /// The same for another process that shares memory with this one, and asks again while it waits.
    void wake_for_sharer();

private:
    /// A wake that is under way, and is tried again while GPU memory is short.
    struct Wake {
        const Clock::time_point since = Clock::now();
        unsigned times_back = 0;                                  ///< from deep sleeps, at the last try
        std::optional<operations::RoomMaking::Holders> holders{}; ///< of the memory; asked for once
    };

    [[nodiscard]] bool is_wanted(const Wake& wake) const;
    /// A try has found too little GPU memory.
    void note_shortage(Wake& wake, Error shortage);
    void note_end(const server::Outcome& outcome);
    /// Has the gate and reports know of the trouble. `is_said`: whether its kind was logged; null: it is too
    /// early to log it.
    void tell(const Error& error, std::atomic<bool>* is_said);

    operations::Operations& operations_;
    server::Server& server_;
    const model::WakeRequest request_;
    std::atomic<Clock::time_point> asked_by_sharer_{Clock::time_point{}};
    std::atomic<bool> is_under_way_{false};
    std::atomic<bool> is_trouble_said_{false};
    std::atomic<bool> is_turn_said_{false};
    std::atomic<bool> is_time_said_{false};
};

} // namespace gpu_sleep::agent::lifecycle
