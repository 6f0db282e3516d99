// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The threads' seats in the gate: given out at a thread's first touch, and to another thread after its end.
// What a seat means is the gate's matter.

#pragma once

#include <atomic>
#include <cstdint>

namespace gpu_sleep::gate {

/// One thread's place in the gate. Made at its first touch, given to the next thread at its end. What the
/// thread alone changes is loaded and stored, which costs no locked instruction.
struct Seat {
    /// How deep in calls within calls the thread is, and above that the number of its outermost and inner
    /// calls so far, of the seat's former threads too. In one word: who says that it is inside counts by
    /// that.
    std::atomic<std::uint64_t> calls{0};
    std::atomic<bool> taken{false};           ///< by a living thread
    std::atomic<bool> has_pass{false};        ///< the thread has one of its own; changed by it alone
    std::atomic<std::uint64_t> shares_pass{}; ///< number of another's, 0 for none; changed by it alone
    std::atomic<std::uint64_t> counted{};     ///< its calls before it had a pass; changed by it alone
    std::atomic<std::uint32_t> questions{};   ///< within each other that it asks now; changed by it alone
    Seat* next = nullptr;                     ///< in the list of all

    static constexpr unsigned k_depth_bits = 20; // more than fit a stack
    static constexpr std::uint64_t k_depth = (std::uint64_t{1} << k_depth_bits) - 1;

    /// Enters a call. Returns whether it is within another.
    bool enter() noexcept {
        const auto before = calls.load(std::memory_order_relaxed);
        calls.store(before + (k_depth + 1) + 1, std::memory_order_relaxed);
        return (before & k_depth) != 0;
    }
    void leave() noexcept { deepen(-std::uint64_t{1}); }
    /// Goes on with a call that was left while it was held: counts none.
    void enter_again() noexcept { deepen(1); }

    /// Begins a question. Returns whether it is within another.
    bool ask() noexcept {
        const auto before = questions.load(std::memory_order_relaxed);
        questions.store(before + 1, std::memory_order_relaxed);
        return before != 0;
    }
    void end_question() noexcept {
        questions.store(questions.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    }
    /// Whether the thread is in a question that passed.
    [[nodiscard]] bool is_asking() const noexcept { return questions.load(std::memory_order_acquire) != 0; }

    /// Whether the thread is in a call that passed. Who is seen outside has counted what it did inside.
    [[nodiscard]] bool is_inside() const noexcept {
        return (calls.load(std::memory_order_acquire) & k_depth) != 0;
    }
    [[nodiscard]] std::uint64_t count() const noexcept {
        return calls.load(std::memory_order_relaxed) >> k_depth_bits;
    }
    /// What the thread calls from here on is not its program's work: count() is `counted` afterwards.
    void stop_counting() noexcept { counted.store(count(), std::memory_order_relaxed); }
    void count_again() noexcept {
        const auto depth = calls.load(std::memory_order_relaxed) & k_depth;
        const auto before = counted.load(std::memory_order_relaxed) << k_depth_bits;
        calls.store(before | depth, std::memory_order_relaxed);
    }

private:
    void deepen(std::uint64_t by) noexcept {
        calls.store(calls.load(std::memory_order_relaxed) + by, std::memory_order_release);
    }
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
