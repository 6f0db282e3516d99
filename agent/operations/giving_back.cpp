// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When contents may be given back, and pinned. At the end of the process the driver takes everything, and
// unpins no more.

#include "operations/giving_back.hpp"

#include "common/interception.hpp"
#include "intercepted/freeing.hpp"
#include "registry/registry.hpp"

namespace gpu_sleep::agent::operations {

namespace {

/// How often the host's memory is looked at while something is retained.
constexpr Milliseconds k_between_looks_at_host{500};

/// Giving back, pinning and preparing hold up the program's calls of the driver while they last: launches
/// came 70 times slower (tests/gpu/retained_test.cpp). So while the program may work they rest for so many
/// times as long.
constexpr int k_rests = 100;
constexpr Milliseconds k_longest_rest{100};

} // namespace

/// Gives up what of the retained contents the host has no room for, if it was not looked at just now. Returns
/// whether the host is short of memory.
bool GivingBack::retained_gives_way() noexcept {
    if (is_early(memory_, next_look_at_host_)) return false;
    const bool holds_any = retired_.has_any() || memory_.with_lock([](const LockedMemory& locked) {
        return locked.contents().retained() > 0;
    });
    if (!holds_any) return false;
    memory_.tidy_within(k_between_looks_at_host); // first: looking may fail
    next_look_at_host_ = Clock::now() + k_between_looks_at_host;
    bool is_short = false;
    ignoring_errors([&] { is_short = memory_.give_way(); });
    return is_short;
}

/// Gives a little back of what is retired or wasted. False when nothing is left.
bool GivingBack::a_piece() {
    // A piece is unpinned in a context, which must not end just then. Who ends one may wait for the device.
    const std::shared_lock contexts(registry::books().contexts.alive, std::try_to_lock);
    if (contexts) return retired_.give_back_some();
    std::this_thread::sleep_for(Milliseconds(1));
    return retired_.has_waste();
}

bool GivingBack::is_any_awake() {
    const auto state = status_.state();
    return state == model::State::awake || state == model::State::partial;
}

/// Does a little of `work`, which returns whether there was any; rests from it where it `may_rest`. True:
/// call again at once. False: nothing is left, or it rests, and asks to be called later.
template <class Work>
bool GivingBack::in_time(bool may_rest, Work&& work) {
    const auto start = Clock::now();
    if (may_rest && is_early(memory_, next_time_)) return false;
    if (!work()) return false;
    if (!may_rest) return true;
    const auto end = Clock::now();
    const auto rest = std::min<Clock::duration>(k_rests * (end - start), k_longest_rest);
    next_time_ = end + rest;
    memory_.tidy_within(std::chrono::ceil<Milliseconds>(rest));
    return false;
}

/// Gives a little back, and rests from it while the program may work, unless memory is short.
bool GivingBack::in_time() {
    if (!memory_.may_call_driver()) return false;
    // While all sleeps somebody else may have locked the driver: what can wait does.
    const bool is_awake = is_any_awake();
    if (intercepts() && is_awake) {
        intercepted::give_back_due();
        idle_.ask(memory_.api());
    }
    is_host_short_ |= retained_gives_way();
    retired_.collect();
    return in_time(is_awake && !is_host_short_, [this] {
        const bool has_any = a_piece();
        is_host_short_ &= has_any;
        return has_any;
    });
}

bool GivingBack::some() {
    /// Pins a little of what a sleep has left to be pinned. False when nothing is left.
    const auto pin_some = [this] {
        if (!memory_.may_call_driver()) return false;
        auto* const batch =
            memory_.with_lock([](const LockedMemory& locked) { return locked.contents().find_unpinned(); });
        if (!batch) return false;
        const std::shared_lock contexts(registry::books().contexts.alive, std::try_to_lock);
        if (contexts)
            static_cast<void>(batch->pin_some()); // freed meanwhile, it lives until this thread reaps it
        else
            std::this_thread::sleep_for(Milliseconds(1));
        return true;
    };
    return in_time() || in_time(is_any_awake(), pin_some) ||
           in_time(is_any_awake(), [this] { return preparation_.prepare_some(memory_); });
}

void GivingBack::while_waiting() noexcept {
    if (memory_.may_call_driver() && retained_gives_way()) retired();
}

void GivingBack::retired() noexcept {
    // In a deep sleep too: nothing is pinned then, and the driver is not asked.
    if (!memory_.is_started() || memory_.is_ending()) return;
    ignoring_errors([this] {
        retired_.collect();
        const std::shared_lock contexts(registry::books().contexts.alive, std::try_to_lock);
        while (contexts && retired_.give_back_some()) {
        }
    });
}

bool GivingBack::unpin_all() noexcept {
    if (!memory_.is_started() || memory_.is_ending()) return false;
    bool are_all_unpinned = false;
    ignoring_errors([&] {
        const std::shared_lock contexts(registry::books().contexts.alive);
        retired_.collect();
        while (retired_.give_back_some()) {
        }
        are_all_unpinned =
            memory_.with_lock([](const LockedMemory& locked) { return locked.contents().unpin(); });
    });
    return are_all_unpinned;
}

bool GivingBack::files() {
    if (memory_.is_ending()) return false;
    retired_.collect();
    return retired_.give_back_files();
}

bool GivingBack::unneeded() {
    if (!memory_.may_call_driver()) return false;
    retired_.collect();
    bool has_any = retired_.has_any();
    while (a_piece()) has_any = true;
    return has_any;
}

bool GivingBack::all() {
    if (!memory_.may_call_driver()) return false;
    const bool has_retained =
        memory_.with_lock([](LockedMemory& locked) { return locked.contents().trim_retained(0) > 0; });
    return unneeded() || has_retained;
}

} // namespace gpu_sleep::agent::operations
