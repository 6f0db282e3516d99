// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving seats out and taking them back.

#include "gate/seats.hpp"

#include <pthread.h>

#include <new>
#include <optional>

namespace gpu_sleep::gate {

namespace {

/// Without memory for a seat a thread shares this one: then it may be taken for inside when it is not, never
/// the other way round as long as it is alone there. Always taken, so that nobody gets it for his own; in the
/// list from the start, so that who closes the gate sees it.
constinit Seat s_spare{.taken = true};

/// Makes the seat the next thread's, as new.
void leave_seat(Seat& seat) noexcept {
    seat.calls.fetch_and(~Seat::k_depth, std::memory_order_release);
    seat.has_pass.store(false, std::memory_order_relaxed);
    seat.shares_pass.store(0, std::memory_order_relaxed);
    if (&seat != &s_spare) seat.taken.store(false, std::memory_order_release);
}

void end_thread(void* seat) noexcept {
    t_seat = nullptr;
    leave_seat(*static_cast<Seat*>(seat));
}

/// A key whose destructor runs late in a thread's end, after its thread_local objects, whose destructors may
/// still call CUDA. Nothing when the program has taken all keys.
std::optional<pthread_key_t> seat_key() noexcept {
    static const auto s_key = []() -> std::optional<pthread_key_t> {
        pthread_key_t made = 0;
        return ::pthread_key_create(&made, &end_thread) == 0 ? std::optional(made) : std::nullopt;
    }();
    return s_key;
}

/// Ends its thread's seat where no key does it: earlier, so that a seat which the thread takes after that is
/// nobody's again.
struct Leaver {
    ~Leaver() {
        if (t_seat) end_thread(t_seat);
    }
    void stand_by() noexcept {}
};

void leave_at_end(Seat& seat) noexcept {
    const auto key = seat_key();
    if (key && ::pthread_setspecific(*key, &seat) == 0) return;
    static thread_local Leaver s_leaver; // made here, and so destroyed at the thread's end
    s_leaver.stand_by();
}

} // namespace

constinit thread_local Seat* t_seat = nullptr;
constinit std::atomic<Seat*> Seats::s_first{&s_spare};

Seat* Seats::take() noexcept {
    for (auto* seat = first(); seat; seat = seat->next) {
        bool free = false;
        if (seat->taken.compare_exchange_strong(free, true)) return seat;
    }
    auto* seat = new (std::nothrow) Seat;
    if (!seat) return nullptr;
    seat->taken = true;
    seat->next = s_first.load(std::memory_order_relaxed);
    while (!s_first.compare_exchange_weak(seat->next, seat, std::memory_order_acq_rel)) {
    }
    return seat;
}

Seat& Seats::own() noexcept {
    if (t_seat) return *t_seat;
    auto* seat = take();
    if (!seat) return s_spare;
    t_seat = seat;
    leave_at_end(*seat);
    return *seat;
}

void Seats::keep_own_alone() noexcept {
    for (auto* seat = first(); seat; seat = seat->next)
        if (seat != t_seat) leave_seat(*seat);
}

} // namespace gpu_sleep::gate
