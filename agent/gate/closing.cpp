// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Closing the gate, and waiting until nobody is inside.

#include "base/thread_safety.hpp"
#include "gate/gate.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

namespace gpu_sleep::gate {
namespace {

int membarrier(int command) noexcept {
    return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0));
}

} // namespace

Gate::Gate() {
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

bool Gate::is_empty() noexcept {
    // Who was let through and has not entered yet is on its way; it enters under the mutex.
    const MutexLock lock(mutex_);
    if (waiters_.is_any_released()) return false;
    for (const auto* seat = Seats::first(); seat; seat = seat->next) {
        if (seat == t_seat) continue;
        const bool is_inside = seat->calls.is_inside();
        if (holds_all() ? is_inside || seat->questions.is_inside() : is_inside && !has_pass(*seat))
            return false;
    }
    return true;
}

Result<void> Gate::close(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    if (is_abandoned()) return make_error(ErrorCode::context_lost, "the process is ending");
    const auto before = phase();
    set_phase(Phase::draining);
    auto empty = empty_out(deadline, keep_going);
    if (!empty) set_phase(before);
    return empty;
}

// From here on every thread either is seen inside or sees the gate closed.
Result<void> Gate::empty_out(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0 && membarrier(MEMBARRIER_CMD_GLOBAL) != 0)
        return make_error(ErrorCode::refused, "the kernel has no membarrier system call, so the agent cannot "
                                              "tell which threads are launching work");
    return wait_empty(deadline, keep_going);
}

Result<void> Gate::go_deep(HoldRule rule, Clock::time_point deadline,
                           const std::function<bool()>& keep_going) {
    {
        const MutexLock lock(mutex_);
        if (abandoned_) return make_error(ErrorCode::context_lost, "the process is ending");
        rule_ = std::move(rule);
        set_depth(Depth::shut);
        publish(Phase::asleep);
    }
    return empty_out(deadline, keep_going);
}

void Gate::leave_deep() noexcept {
    const MutexLock lock(mutex_);
    set_depth(Depth::none);
    ++changes_;
    notify();
}

Result<void> Gate::wait_empty(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    constexpr std::chrono::microseconds k_look{20};
    constexpr int k_looks_per_question = 500;
    for (int look = 0; !is_empty(); ++look) {
        if (Clock::now() >= deadline)
            return make_error(ErrorCode::timed_out, "a call to the CUDA driver did not return in time: it is "
                                                    "a long copy, or waits for something");
        if (look % k_looks_per_question == 0 && !keep_going())
            return make_error(ErrorCode::cancelled, "the request was withdrawn");
        std::this_thread::sleep_for(k_look);
    }
    return {};
}

} // namespace gpu_sleep::gate
