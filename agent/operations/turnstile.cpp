// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An operation and holds take turns; inhibitors last for a time or without a limit.

#include "operations/turnstile.hpp"

#include <algorithm>

namespace gpu_sleep::agent::operations {

Result<void> Turnstile::enter(bool is_sleep, Clock::time_point deadline,
                              const std::function<bool()>& keep_going) {
    constexpr Milliseconds k_look{100};
    MutexLock lock(mutex_);
    const auto free = [&]() GPU_SLEEP_REQUIRES(mutex_) { return !is_sleep || holds_ == 0; };
    while (!free()) {
        if (Clock::now() >= deadline)
            return make_error(ErrorCode::timed_out, "{} and did not resume in time", k_held_back);
        lock.unlock();
        const bool wanted = keep_going();
        lock.lock();
        if (!wanted) return make_error(ErrorCode::cancelled, "the request was withdrawn");
        changed_.wait_until(mutex_, std::min(deadline, Clock::now() + k_look), free);
    }
    busy_ = true;
    return {};
}

void Turnstile::leave() {
    const MutexLock lock(mutex_);
    busy_ = false;
    changed_.notify_all();
}

bool Turnstile::is_held() const {
    const MutexLock lock(mutex_);
    return holds_ > 0;
}

void Turnstile::hold(bool within_operation) {
    MutexLock lock(mutex_);
    if (!within_operation) changed_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return !busy_; });
    ++holds_;
}

Result<void> Turnstile::resume() {
    const MutexLock lock(mutex_);
    if (holds_ == 0) return make_error(ErrorCode::invalid_argument, "nothing holds sleeps back");
    --holds_;
    changed_.notify_all();
    return {};
}

void Inhibitors::set(std::optional<Milliseconds> time) noexcept {
    const MutexLock lock(mutex_);
    until_ = time ? Clock::now() + *time : Clock::time_point::max();
}

void Inhibitors::lift() noexcept {
    const MutexLock lock(mutex_);
    until_ = {};
}

void Inhibitors::add() noexcept {
    const MutexLock lock(mutex_);
    ++own_;
}

Result<void> Inhibitors::remove() {
    const MutexLock lock(mutex_);
    if (own_ == 0) return make_error(ErrorCode::invalid_argument, "the program does not inhibit sleeps");
    --own_;
    return {};
}

std::optional<Inhibitors::Inhibited> Inhibitors::now() const noexcept {
    const auto time = Clock::now();
    const MutexLock lock(mutex_);
    if (own_ > 0 || until_ == Clock::time_point::max()) return Inhibited{};
    if (until_ <= time) return std::nullopt;
    return Inhibited{std::chrono::duration<double>(until_ - time).count()};
}

} // namespace gpu_sleep::agent::operations
