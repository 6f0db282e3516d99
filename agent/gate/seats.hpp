// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The threads' seats in the gate: given out at a thread's first touch, and to another thread after its end.
// What a seat means is the gate's matter.

#pragma once

#include <atomic>
#include <cstdint>

namespace gpu_sleep::gate {

/// One thread's place in the gate. Made at its first touch, given to the next thread at its end.
struct Seat {
    std::atomic<bool> inside{false};          ///< in a call that passed
    std::atomic<bool> taken{false};           ///< by a living thread
    unsigned depth = 0;                       ///< of calls within calls; the thread's own
    std::atomic<bool> has_pass{false};        ///< the thread has one of its own; changed by it alone
    std::atomic<std::uint64_t> shares_pass{}; ///< number of another's, 0 for none; changed by it alone
    Seat* next = nullptr;                     ///< in the list of all
};

/// The calling thread's seat; null before its first touch.
extern constinit thread_local Seat* t_seat __attribute__((tls_model("initial-exec")));

/// All seats of the process, in a list that only grows. Thread-safe. Never destroyed.
class Seats {
public:
    /// The calling thread's seat, given to it at the first call.
    [[nodiscard]] static Seat& own() noexcept;
    /// The first of the list.
    [[nodiscard]] static Seat* first() noexcept { return s_first.load(std::memory_order_acquire); }
    /// In a child of fork(): all but the calling thread's are free.
    static void keep_own_alone() noexcept;

private:
    [[nodiscard]] static Seat* take() noexcept;

    static constinit std::atomic<Seat*> s_first;
};

} // namespace gpu_sleep::gate
