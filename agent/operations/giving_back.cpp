// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When contents may be given back, and pinned. At the end of the process the driver takes everything, and
// unpins no more.

#include "operations/giving_back.hpp"

#include "base/guard.hpp"
#include "common/interception.hpp"
#include "intercepted/contexts_lock.hpp"
#include "intercepted/trimming.hpp"

#include <mutex>
#include <shared_mutex>
#include <thread>

namespace gpu_sleep::agent::operations {

namespace {

/// How often the host's memory is looked at while something is retained.
constexpr Milliseconds k_between_looks_at_host{500};

/// Gives up what of the retained contents the host has no room for, if it was not looked at just now. Returns
/// whether there was any.
bool retained_gives_way(Parts& parts) noexcept {
    const auto now = Clock::now();
    if (now < parts.next_look_at_host) return false;
    const bool retains =
        parts.memory.with_lock([](const LockedMemory& locked) { return locked.retained() > 0; });
    if (!retains) return false;
    parts.memory.tidy_within(k_between_looks_at_host); // first: looking may fail
    parts.next_look_at_host = now + k_between_looks_at_host;
    bool has_given = false;
    ignoring_errors([&] { has_given = parts.memory.give_way() > 0; });
    return has_given;
}

/// Gives a little back. False when nothing is left.
bool give_back_some(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    // While all sleeps somebody else may have locked the driver: what can wait does.
    const auto state = parts.status.state();
    const bool is_any_awake = state == model::State::awake || state == model::State::partial;
    if (intercepts() && is_any_awake) {
        intercepted::give_back_due();
        parts.idle.ask(parts.memory.api());
    }
    retained_gives_way(parts);
    parts.retired.collect();
    // A piece is unpinned in a context, which must not end just then. Who ends one may wait for the device.
    const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
    if (!contexts) {
        std::this_thread::sleep_for(Milliseconds(1));
        return parts.retired.has_waste();
    }
    return parts.retired.give_back_some();
}

/// Pins a little of what a sleep has left to be pinned. False when nothing is left.
bool pin_some(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    auto* const batch =
        parts.memory.with_lock([](const LockedMemory& locked) { return locked.find_unpinned(); });
    if (!batch) return false;
    const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
    if (contexts)
        static_cast<void>(batch->pin_some()); // freed meanwhile, it lives until this thread reaps it
    else
        std::this_thread::sleep_for(Milliseconds(1));
    return true;
}

} // namespace

void give_way_while_waiting(Parts& parts) noexcept {
    if (parts.memory.may_call_driver() && retained_gives_way(parts)) give_back_retired(parts);
}

void give_back_retired(Parts& parts) noexcept {
    if (!parts.memory.may_call_driver()) return;
    ignoring_errors([&] {
        parts.retired.collect();
        const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
        while (contexts && parts.retired.give_back_some()) {
        }
    });
}

bool tidy(Parts& parts) {
    return give_back_some(parts) || pin_some(parts);
}

bool give_back_files(Parts& parts) {
    if (parts.memory.is_ending()) return false;
    parts.retired.collect();
    return parts.retired.give_back_files();
}

bool give_back_unneeded(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    parts.retired.collect();
    bool has_any = parts.retired.has_any();
    while (give_back_some(parts)) has_any = true;
    return has_any;
}

bool give_back_all(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    const bool has_retained =
        parts.memory.with_lock([](LockedMemory& locked) { return locked.trim_retained(0) > 0; });
    return give_back_unneeded(parts) || has_retained;
}

} // namespace gpu_sleep::agent::operations
