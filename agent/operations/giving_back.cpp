// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When contents may be given back, and pinned. At the end of the process the driver takes everything, and
// unpins no more.

#include "operations/giving_back.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "common/interception.hpp"
#include "driver/context.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/own_contexts.hpp"
#include "operations/preparing.hpp"

namespace gpu_sleep::agent::operations {

namespace {

/// How often the host's memory is looked at while something is retained.
constexpr Milliseconds k_between_looks_at_host{500};

/// Giving back, pinning and preparing hold up the program's calls of the driver while they last: launches
/// came 70 times slower (tests/gpu/retained_test.cpp). So while the program may work they rest for so many
/// times as long.
constexpr int k_rests = 100;
constexpr Milliseconds k_longest_rest{100};

/// Gives up what of the retained contents the host has no room for, if it was not looked at just now. Returns
/// whether the host is short of memory.
bool retained_gives_way(Parts& parts) noexcept {
    const auto now = Clock::now();
    if (now < parts.next_look_at_host) {
        // Another caller asked for this look, in place of the one that was asked for here.
        parts.memory.tidy_within(std::chrono::ceil<Milliseconds>(parts.next_look_at_host - now));
        return false;
    }
    const bool holds_any = parts.retired.has_any() || parts.memory.with_lock([](const LockedMemory& locked) {
        return locked.contents().retained() > 0;
    });
    if (!holds_any) return false;
    parts.memory.tidy_within(k_between_looks_at_host); // first: looking may fail
    parts.next_look_at_host = now + k_between_looks_at_host;
    bool is_short = false;
    ignoring_errors([&] { is_short = parts.memory.give_way(); });
    return is_short;
}

/// Gives a little back of what is retired or wasted. False when nothing is left.
bool give_back_some(Parts& parts) {
    // A piece is unpinned in a context, which must not end just then. Who ends one may wait for the device.
    const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
    if (contexts) return parts.retired.give_back_some();
    std::this_thread::sleep_for(Milliseconds(1));
    return parts.retired.has_waste();
}

bool is_any_awake(Parts& parts) {
    const auto state = parts.status.state();
    return state == model::State::awake || state == model::State::partial;
}

/// Whether it is not yet time for more: then it is asked for once it is.
bool rests(Parts& parts) {
    const auto now = Clock::now();
    if (now >= parts.next_giving_back) return false;
    // Earlier looks go past it.
    parts.memory.tidy_within(std::chrono::ceil<Milliseconds>(parts.next_giving_back - now));
    return true;
}

/// Rests from what began at `start`.
void rest_from(Parts& parts, Clock::time_point start) {
    const auto end = Clock::now();
    const auto rest = std::min<Clock::duration>(k_rests * (end - start), k_longest_rest);
    parts.next_giving_back = end + rest;
    parts.memory.tidy_within(std::chrono::ceil<Milliseconds>(rest));
}

/// Does a little of `work`, which returns whether there was any; rests from it where it `may_rest`. True:
/// call again at once. False: nothing is left, or it rests, and asks to be called later.
template <class Work>
bool do_in_time(Parts& parts, bool may_rest, Work&& work) {
    if (may_rest && rests(parts)) return false;
    const auto start = Clock::now();
    if (!work(parts)) return false;
    if (!may_rest) return true;
    rest_from(parts, start);
    return false;
}

/// Gives a little back, and rests from it while the program may work, unless memory is short. True: call
/// again at once. False: nothing is left, or it rests, and asks to be called later.
bool give_back_in_time(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    // While all sleeps somebody else may have locked the driver: what can wait does.
    const bool is_awake = is_any_awake(parts);
    if (intercepts() && is_awake) {
        intercepted::give_back_due();
        parts.idle.ask(parts.memory.api());
    }
    parts.gives_back_at_once |= retained_gives_way(parts);
    parts.retired.collect();
    return do_in_time(parts, is_awake && !parts.gives_back_at_once, [](Parts& its) {
        const bool has_any = give_back_some(its);
        its.gives_back_at_once &= has_any;
        return has_any;
    });
}

/// Pins a little of what a sleep has left to be pinned. False when nothing is left.
bool pin_some(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    auto* const batch =
        parts.memory.with_lock([](const LockedMemory& locked) { return locked.contents().find_unpinned(); });
    if (!batch) return false;
    const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
    if (contexts)
        static_cast<void>(batch->pin_some()); // freed meanwhile, it lives until this thread reaps it
    else
        std::this_thread::sleep_for(Milliseconds(1));
    return true;
}

/// Where an allocation of the program has failed: who has the GPU memory, and the command that makes room.
void say_who_has_memory(Parts& parts) {
    const auto lack = parts.memory.shortage().take();
    if (!lack || !parts.memory.may_call_driver()) return;
    const auto total = driver::device_memory(parts.memory.api(), lack->device);
    if (!total || lack->bytes >= *total) return; // no sleep makes room for so much
    const auto gpu = parts.devices.find(lack->device).uuid;
    if (gpu.empty()) return;
    const auto holders = parts.room.holders({{gpu, lack->bytes}}).words;
    if (holders.empty()) return;
    log::warning("an allocation of {} found too little memory on GPU {}: {}; make room with gpu-reclaim "
                 "--need {}MiB --gpu {}, or start the program with gpu-run --need SIZE",
                 format_bytes(lack->bytes), lack->device, holders, (lack->bytes + k_mib - 1) / k_mib, gpu);
    parts.memory.shortage().set_said();
}

} // namespace

void give_way_while_waiting(Parts& parts) noexcept {
    if (parts.memory.may_call_driver() && retained_gives_way(parts)) give_back_retired(parts);
}

void give_back_retired(Parts& parts) noexcept {
    // In a deep sleep too: nothing is pinned then, and the driver is not asked.
    if (!parts.memory.is_started() || parts.memory.is_ending()) return;
    ignoring_errors([&] {
        parts.retired.collect();
        const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
        while (contexts && parts.retired.give_back_some()) {
        }
    });
}

bool unpin_all(Parts& parts) noexcept {
    if (!parts.memory.is_started() || parts.memory.is_ending()) return false;
    bool are_all_unpinned = false;
    ignoring_errors([&] {
        const std::shared_lock contexts(intercepted::contexts_mutex());
        parts.retired.collect();
        while (parts.retired.give_back_some()) {
        }
        are_all_unpinned =
            parts.memory.with_lock([](const LockedMemory& locked) { return locked.contents().unpin(); });
    });
    return are_all_unpinned;
}

bool tidy(Parts& parts) {
    say_who_has_memory(parts);
    const auto prepare_some = [](Parts& its) { return its.preparation.prepare_some(its.memory); };
    return give_back_in_time(parts) || do_in_time(parts, is_any_awake(parts), pin_some) ||
           do_in_time(parts, is_any_awake(parts), prepare_some);
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
        parts.memory.with_lock([](LockedMemory& locked) { return locked.contents().trim_retained(0) > 0; });
    return give_back_unneeded(parts) || has_retained;
}

} // namespace gpu_sleep::agent::operations
