// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Comparing, and asking.

#include "operations/idle_watch.hpp"

#include "common/interception.hpp"
#include "gate/gate.hpp"
#include "intercepted/pending_work.hpp"
#include "registry/registry.hpp"
#include "unseen/unseen.hpp"

namespace gpu_sleep::agent::operations {
namespace {

using gate::Gate;

/// Whether no work passes: what was idle before still is.
bool is_shut() noexcept {
    return !Gate::is_open() && Gate::instance().phase() == Gate::Phase::asleep &&
           !Gate::instance().is_checked();
}

bool sees_all() {
    const auto uses = unseen::find_uses();
    return uses && uses->empty();
}

} // namespace

bool IdleWatch::look() noexcept {
    if (!intercepts()) return false;
    if (is_shut()) { // also after a part of it was woken, whose work waits for the rest
        const MutexLock lock(mutex_);
        if (!since_) since_ = Clock::now();
        return false;
    }
    const auto now = Gate::instance().activity();
    const bool captures = registry::books().captures.count() != 0;
    const MutexLock lock(mutex_);
    const bool works = captures || now.is_inside || now.touches != touches_;
    touches_ = now.touches;
    if (works) since_.reset();
    asks_ = !works && !since_;
    return asks_;
}

void IdleWatch::ask(const driver::Api& api) {
    {
        const MutexLock lock(mutex_);
        if (!std::exchange(asks_, false)) return;
    }
    // A capture that is not seen would be broken.
    const auto work = sees_all() ? intercepted::find_running_work(api) : intercepted::RunningWork::unknown;
    const auto now = Gate::instance().activity();
    const MutexLock lock(mutex_);
    is_known_ = work != intercepted::RunningWork::unknown;
    if (work == intercepted::RunningWork::none && !now.is_inside && now.touches == touches_)
        since_ = Clock::now();
}

void IdleWatch::note_sleep() noexcept {
    const auto touches = Gate::instance().activity().touches;
    const MutexLock lock(mutex_);
    if (!since_ || touches != touches_) since_ = Clock::now();
    touches_ = touches;
}

std::optional<IdleWatch::Idle> IdleWatch::now() const noexcept {
    const bool shut = is_shut();
    const auto activity = Gate::instance().activity();
    const MutexLock lock(mutex_);
    if (!intercepts() || !is_known_) return std::nullopt;
    const bool works = !shut && (activity.is_inside || activity.touches != touches_);
    if (works || !since_) return Idle{0, touches_};
    return Idle{seconds_since(*since_), touches_};
}

std::optional<IdleWatch::Idle> IdleWatch::find() const {
    return sees_all() ? now() : std::nullopt;
}

} // namespace gpu_sleep::agent::operations
