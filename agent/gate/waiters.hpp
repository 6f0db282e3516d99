// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The threads that the gate holds, in the order in which they came. The gate's mutex guards them.

#pragma once

#include "base/units.hpp"
#include "gate/hold_rule.hpp"

#include <cstdint>
#include <string_view>

namespace gpu_sleep::gate {

struct Seat;

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
