// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Inhibiting, for a time or without a limit.

#include "operations/inhibitors.hpp"

namespace gpu_sleep::agent::operations {

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
