// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of the threads that the gate holds.

#include "gate/waiters.hpp"

namespace gpu_sleep::gate {
namespace {

bool may_release(const Waiter& waiter) noexcept {
    return !begins_capture(waiter.touch) && waiter.touch != Touch::ends && !waiter.released &&
           !waiter.names_sleeping;
}

} // namespace

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
