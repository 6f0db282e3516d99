// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving seats out and taking them back, and the list of the threads that the gate holds.

#include "gate/seats.hpp"

#include "base/fd.hpp"

#include <csignal>
#include <memory>

namespace gpu_sleep::gate {

namespace {

/// Without memory for a seat a thread shares this one: then it may be taken for inside when it is not, never
/// the other way round as long as it is alone there. Always taken, so that nobody gets it for his own; in the
/// list from the start, so that who closes the gate sees it.
constinit Seat s_spare{.taken = true};

/// Makes the seat the next thread's, as new.
void leave_seat(Seat& seat) noexcept {
    for (auto* const calls : {&seat.calls, &seat.questions}) {
        calls->frame.store(0, std::memory_order_relaxed);
        calls->word.fetch_and(~Calls::k_depth, std::memory_order_release);
    }
    seat.has_pass.store(false, std::memory_order_relaxed);
    seat.shares_pass.store(0, std::memory_order_relaxed);
    if (seat.waiter) seat.waiter->frame = 0;
    if (&seat != &s_spare) seat.taken.store(false, std::memory_order_release);
}

void end_thread(void* seat) noexcept {
    t_seat = nullptr;
    auto& own = *static_cast<Seat*>(seat);
    if (own.waiter->frame != 0) end_wait(*own.waiter); // its thread has jumped out of the gate
    leave_seat(own);
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

void find_stack(Seat& seat) noexcept {
    void* begin = nullptr;
    std::size_t bytes = 0;
    pthread_attr_t thread;
    const StandardNumbers filled; // the C library reads of the first thread's in a file
    if (::pthread_getattr_np(::pthread_self(), &thread) == 0) {
        ::pthread_attr_getstack(&thread, &begin, &bytes);
        ::pthread_attr_destroy(&thread);
    }
    seat.stack_begin = reinterpret_cast<std::uintptr_t>(begin);
    seat.stack_end = seat.stack_begin + bytes;
}

bool may_release(const Waiter& waiter) noexcept {
    return !begins_capture(waiter.touch) && waiter.touch != Touch::ends && !waiter.released &&
           !waiter.names_sleeping;
}

} // namespace

[[gnu::no_sanitize_address]] bool is_left(std::uintptr_t frame, std::uintptr_t here,
                                          std::uintptr_t returns_to) noexcept {
    const auto* const seat = t_seat;
    if (!seat || std::min(frame, here) <= seat->stack_begin || std::max(frame, here) > seat->stack_end)
        return false;
    if (here < frame) return returns_to != 0 && return_of(frame) != returns_to;
    stack_t handlers{}; // which may lie within
    return ::sigaltstack(nullptr, &handlers) == 0 && (handlers.ss_flags & SS_ONSTACK) == 0;
}

bool Calls::enter_within(std::uint64_t before, std::uintptr_t here) noexcept {
    const auto counted = before + (k_depth + 1);
    const bool is_within =
        !is_left(frame.load(std::memory_order_relaxed), here, returns_to.load(std::memory_order_relaxed));
    if (!is_within) {
        frame.store(0, std::memory_order_relaxed);
        set_frame(here, return_of(here));
    }
    word.store((is_within ? counted : counted & ~k_depth) + 1, std::memory_order_release);
    return is_within;
}

constinit thread_local Seat* t_seat = nullptr;
constinit std::atomic<Seat*> Seats::s_first{&s_spare};

Seat* Seats::take() noexcept {
    for (auto* seat = first(); seat; seat = seat->next) {
        bool free = false;
        if (seat->taken.compare_exchange_strong(free, true)) return seat;
    }
    auto waiter = std::unique_ptr<Waiter>(new (std::nothrow) Waiter);
    auto* const seat = waiter ? new (std::nothrow) Seat : nullptr;
    if (!seat) return nullptr;
    seat->waiter = waiter.release();
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
    find_stack(*seat);
    t_seat = seat;
    leave_at_end(*seat);
    return *seat;
}

void Seats::keep_own_alone() noexcept {
    for (auto* seat = first(); seat; seat = seat->next) {
        if (seat->waiter) seat->waiter->listed = false; // in the parent
        if (seat != t_seat) leave_seat(*seat);
    }
}

void Waiters::add(Waiter& waiter) noexcept {
    if (waiter.listed) return;
    auto** place = &first_;
    while (*place) place = &(*place)->next;
    *place = &waiter;
    waiter.listed = true;
    waiter.next = nullptr;
    figures_ = {figures_.held_now + 1, figures_.held_ever + 1, waiter.entry_point};
}

void Waiters::remove(Waiter& waiter) noexcept {
    if (!waiter.listed) return;
    auto** place = &first_;
    while (*place != &waiter) place = &(*place)->next;
    *place = waiter.next;
    waiter.listed = waiter.released = false;
    --figures_.held_now;
}

const Waiter* Waiters::find(const Seat* seat) const noexcept {
    const auto* waiter = first_;
    while (waiter && waiter->seat != seat) waiter = waiter->next;
    return waiter;
}

bool Waiters::is_any_released() noexcept {
    constexpr Milliseconds k_comes_within{1'000};
    for (auto* waiter = first_; waiter; waiter = waiter->next) {
        if (!waiter->released) continue;
        if (Clock::now() - waiter->released_at < k_comes_within) return true;
        waiter->released = false; // it has jumped away
        waiter->names_sleeping = true;
    }
    return false;
}

bool Waiters::release_oldest() noexcept {
    for (auto* waiter = first_; waiter; waiter = waiter->next) {
        if (!may_release(*waiter)) continue;
        waiter->released = true;
        waiter->released_at = Clock::now();
        return true;
    }
    return false;
}

std::uint64_t Waiters::releasable() const noexcept {
    std::uint64_t count = 0;
    for (const auto* waiter = first_; waiter; waiter = waiter->next) count += may_release(*waiter) ? 1 : 0;
    return count;
}

} // namespace gpu_sleep::gate
