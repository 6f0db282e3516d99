// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving seats out and taking them back.

#include "gate/seats.hpp"

#include "gate/waiters.hpp"

#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <optional>

// This library, up to the end of its code. Source: ld's default linker script.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[];
extern "C" __attribute__((visibility("hidden"))) const char etext[];

namespace gpu_sleep::gate {

namespace {

/// Without memory for a seat a thread shares this one: then it may be taken for inside when it is not, never
/// the other way round as long as it is alone there. Always taken, so that nobody gets it for his own; in the
/// list from the start, so that who closes the gate sees it.
constinit Seat s_spare{.taken = true};

/// Makes the seat the next thread's, as new.
void leave_seat(Seat& seat) noexcept {
    for (auto* const calls : {&seat.calls, &seat.questions})
        calls->word.fetch_and(~Calls::k_depth, std::memory_order_release);
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

// A jump upwards has left the frame. Below it the place where its call returns to is overwritten sooner or
// later where the stack has grown again.
bool is_left(std::uintptr_t frame, std::uintptr_t here) noexcept {
    // Farther away it is another stack, as handlers and fibres have.
    constexpr std::uintptr_t k_stack = std::uintptr_t{8} << 20;
    if (here - frame < k_stack) return true;
#if defined(__x86_64__)                   // where calls push that place
    std::array<const char*, 128> words{}; // more than any hook has in its frame
    const auto bytes = std::min<std::uintptr_t>(sizeof words, frame - here);
    const iovec to{words.data(), bytes};
    const iovec from{reinterpret_cast<void*>(frame - bytes), bytes};
    const auto is_ours = [](const char* word) { return word >= __ehdr_start && word < etext; };
    return ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(bytes) &&
           std::none_of(words.begin(), words.end(), is_ours);
#else
    return false;
#endif
}

bool Calls::enter_within(std::uint64_t before, std::uintptr_t here) noexcept {
    const auto counted = before + (k_depth + 1);
    word.store(counted + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst); // who says that it was left, looks again
    if (this == &s_spare.calls || this == &s_spare.questions) return true;
    if (left.load(std::memory_order_relaxed) != before &&
        !is_left(frame.load(std::memory_order_relaxed), here))
        return true;
    frame.store(here, std::memory_order_relaxed);
    word.store((counted & ~k_depth) + 1, std::memory_order_release);
    return false;
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
    t_seat = seat;
    seat->thread = ::gettid();
    leave_at_end(*seat);
    return *seat;
}

void Seats::keep_own_alone() noexcept {
    if (t_seat) t_seat->thread = ::gettid();
    for (auto* seat = first(); seat; seat = seat->next) {
        if (seat->waiter) seat->waiter->listed = false; // in the parent
        if (seat != t_seat) leave_seat(*seat);
    }
}

} // namespace gpu_sleep::gate
