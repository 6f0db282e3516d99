// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The threads in the gate: their seats, given out at a thread's first touch and to another thread after its
// end, and the list of the threads that the gate holds. What a seat means is the gate's matter.

#pragma once

#include "base/units.hpp"
#include "gate/hold_rule.hpp"

#include <atomic>
#include <cstdint>
#include <string_view>

namespace gpu_sleep::gate {

struct Waiter;

/// Where the stack ended at the call of the function that this is used in.
#define GPU_SLEEP_HERE reinterpret_cast<std::uintptr_t>(__builtin_dwarf_cfa())

/// Where the function returns to that was called at `frame`, while it runs; 0 if that is not known.
[[nodiscard, gnu::always_inline]] inline std::uintptr_t return_of(std::uintptr_t frame) noexcept {
#if defined(__x86_64__) // where a call pushes that
    return *reinterpret_cast<const std::uintptr_t*>(frame - sizeof(std::uintptr_t));
#else
    return frame * 0;
#endif
}

/// Whether the calling thread has left a function of ours that was called at `frame` by a jump (siglongjmp):
/// another was called at `here`, no deeper in the thread's own stack, or deeper where what it `returns_to` is
/// overwritten, if that is not 0. Never said on any other stack, nor of what lies there: a handler or a
/// coroutine may run there amid a call.
[[nodiscard]] bool is_left(std::uintptr_t frame, std::uintptr_t here, std::uintptr_t returns_to) noexcept;

/// How deep in calls within calls a thread is, which it alone changes. A call that it has left by a jump
/// stays counted until its next call, or, where that cannot be told, its next call no deeper in the stack.
struct Calls {
    /// The depth, and above that the number of outermost and inner calls so far, of the seat's former threads
    /// too. In one word: who says that it is inside counts by that.
    std::atomic<std::uint64_t> word{0};
    std::atomic<std::uintptr_t> frame{0};      ///< of the outermost, on the stack; 0 while not known
    std::atomic<std::uintptr_t> returns_to{0}; ///< and where to

    static constexpr unsigned k_depth_bits = 20; // more than fit a stack
    static constexpr std::uint64_t k_depth = (std::uint64_t{1} << k_depth_bits) - 1;

    /// Enters a call, which is at `here` on the stack. Returns whether it is within another.
    bool enter(std::uintptr_t here) noexcept {
        const auto before = word.load(std::memory_order_relaxed);
        if ((before & k_depth) != 0) [[unlikely]]
            return enter_within(before, here);
        word.store(before + (k_depth + 1) + 1, std::memory_order_release);
        std::atomic_signal_fence(std::memory_order_seq_cst); // a handler may call at any time
        set_frame(here, return_of(here));
        return false;
    }
    void leave() noexcept {
        const auto after = word.load(std::memory_order_relaxed) - 1;
        if ((after & k_depth) == 0) [[likely]]
            frame.store(0, std::memory_order_relaxed);
        word.store(after, std::memory_order_release);
    }
    /// The frame was 0.
    void set_frame(std::uintptr_t here, std::uintptr_t to) noexcept {
        returns_to.store(to, std::memory_order_relaxed);
        frame.store(here, std::memory_order_release);
    }
    /// Whether the thread is in a call that passed. Who is seen outside has counted what it did inside.
    [[nodiscard]] bool is_inside() const noexcept {
        return (word.load(std::memory_order_acquire) & k_depth) != 0;
    }

private:
    [[gnu::noinline]] bool enter_within(std::uint64_t before, std::uintptr_t here) noexcept;
};

/// One thread's place in the gate. Made at its first touch, given to the next thread at its end. What the
/// thread alone changes is loaded and stored, which costs no locked instruction.
struct Seat {
    Calls calls{};                            ///< those that passed
    Calls questions{};                        ///< that it asks now
    std::atomic<bool> taken{false};           ///< by a living thread
    std::atomic<bool> has_pass{false};        ///< the thread has one of its own; changed by it alone
    std::atomic<std::uint64_t> shares_pass{}; ///< number of another's, 0 for none; changed by it alone
    std::atomic<std::uint64_t> counted{};     ///< its calls before it had a pass; changed by it alone
    Waiter* waiter = nullptr; ///< what it waits as at a closed gate; not on its stack, which a jump may leave
    std::uintptr_t stack_begin = 0; ///< the thread's own; 0 and 0 if that is not known
    std::uintptr_t stack_end = 0;
    Seat* next = nullptr; ///< in the list of all

    [[nodiscard]] std::uint64_t count() const noexcept {
        return calls.word.load(std::memory_order_relaxed) >> Calls::k_depth_bits;
    }
    /// Calls of this thread from here on are not its program's work: count() stays at `counted`.
    void stop_counting() noexcept { counted.store(count(), std::memory_order_relaxed); }
    void count_again() noexcept {
        const auto depth = calls.word.load(std::memory_order_relaxed) & Calls::k_depth;
        const auto before = counted.load(std::memory_order_relaxed) << Calls::k_depth_bits;
        calls.word.store(before | depth, std::memory_order_relaxed);
    }
};

/// The calling thread's seat; null before its first touch.
extern constinit thread_local Seat* t_seat __attribute__((tls_model("initial-exec")));

/// The thread whose this is ends, and waits at the gate no more. In gate.cpp.
void end_wait(Waiter& waiter) noexcept;

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

/// How the touches stand, for a person to read.
struct Waiting {
    std::uint64_t held_now = 0;
    std::uint64_t held_ever = 0;
    std::string_view last; ///< the entry point that was held last; in static text
};

/// In the seat of the thread that waits, and in a list of its own: waiting takes no memory.
struct Waiter {
    const char* entry_point = nullptr;
    Touch touch{};
    const Seat* seat = nullptr;
    std::uintptr_t frame = 0;      ///< of the call on the stack, which a jump may have left; 0: nobody's. Its
                                   ///< thread alone changes it
    std::uintptr_t returns_to = 0; ///< and where to
    Named named{};
    Clock::time_point since{};
    Waiter* next = nullptr;
    bool listed = false;
    std::uint64_t change = 0;   ///< the gate's last when it was judged
    std::uint64_t refusals = 0; ///< of wakes, when it came
    bool released = false;
    Clock::time_point released_at{};
    bool names_sleeping = false; ///< it may, or is gone; not let through while a transaction is under way
    bool said = false;
};

/// A list of them that owns none.
class Waiters {
public:
    /// At the end, unless it is listed.
    void add(Waiter& waiter) noexcept;
    /// Does nothing if it is not listed.
    void remove(Waiter& waiter) noexcept;
    /// All of them: those that are still there judge anew, and are added again.
    void clear() noexcept {
        while (first_) remove(*first_);
    }
    /// The one of the thread in `seat`, or null.
    [[nodiscard]] const Waiter* find(const Seat* seat) const noexcept;
    /// Whether one was released and has not left yet. One whose thread does not come for it is taken back.
    [[nodiscard]] bool is_any_released() noexcept;
    /// Releases the one that has waited longest, of those that begin no capture, end no context and name
    /// nothing that sleeps. False when there is none.
    bool release_oldest() noexcept;
    /// How many there are of those.
    [[nodiscard]] std::uint64_t releasable() const noexcept;
    [[nodiscard]] bool empty() const noexcept { return !first_; }
    [[nodiscard]] Waiting figures() const noexcept { return figures_; }

private:
    Waiter* first_ = nullptr; ///< the oldest
    Waiting figures_;
};

} // namespace gpu_sleep::gate
