// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Closing the gate, and waiting until nobody is inside.

#include "base/guard.hpp"
#include "base/small_file.hpp"
#include "base/thread_safety.hpp"
#include "gate/gate.hpp"

#include <fmt/format.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

namespace gpu_sleep::gate {
namespace {

int membarrier(int command) noexcept {
    return static_cast<int>(::syscall(SYS_membarrier, command, 0, 0));
}

/// The stack pointer of a thread of this process that waits in a system call; 0 if it does not, or that is
/// not known. Source: proc_pid_syscall(5).
std::uintptr_t stack_pointer_of(int thread) {
    const auto text = read_small_file(fmt::format("/proc/self/task/{}/syscall", thread));
    if (!text || text->empty() || text->front() < '0' || text->front() > '9') return 0;
    const auto last = text->rfind(' ');
    return std::strtoull(text->c_str() + text->rfind(' ', last - 1), nullptr, 16);
}

/// Notes the calls that their threads have left by a jump, where a thread does something else now.
void note_left() {
    for (auto* seat = Seats::first(); seat; seat = seat->next)
        for (auto* const calls : {&seat->calls, &seat->questions}) {
            const auto word = calls->word.load(std::memory_order_acquire);
            const auto thread = seat->thread.load(std::memory_order_relaxed);
            const auto here = calls->is_inside() && thread != 0 ? stack_pointer_of(thread) : 0;
            if (here == 0 || !is_left(calls->frame.load(std::memory_order_relaxed), here)) continue;
            if (calls->word.load(std::memory_order_relaxed) == word) calls->left = word;
        }
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); // its next call either is seen, or sees that
}

} // namespace

Gate::Gate() {
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

bool Gate::is_empty() const noexcept {
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
        if (look % k_looks_per_question == k_looks_per_question - 1) ignoring_errors(note_left);
        std::this_thread::sleep_for(k_look);
    }
    return {};
}

} // namespace gpu_sleep::gate
