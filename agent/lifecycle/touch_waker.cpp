// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking for a wake, and saying what stands against it.

#include "lifecycle/touch_waker.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"

namespace gpu_sleep::agent::lifecycle {

void TouchWaker::wake() {
    if (is_under_way_.exchange(true)) return;
    const auto asked = guarded([&]() -> Result<void> {
        const auto wake = std::make_shared<Wake>();
        wake->times_back = operations_.deep.times_back();
        server_.submit_for_touch(
            request_, [this, wake] { return is_wanted(*wake); },
            [this, wake](const Error& shortage) { note_shortage(*wake, shortage); },
            [this](const server::Outcome& outcome) { note_end(outcome); });
        return {};
    });
    if (!asked) is_under_way_ = false; // the touch still waits, and asks again
}

void TouchWaker::wake_for_sharer() {
    asked_by_sharer_ = Clock::now();
    wake();
}

bool TouchWaker::is_wanted(const Wake& wake) const {
    constexpr Milliseconds k_asks_within{2'000};
    if (Clock::now() - asked_by_sharer_.load() < k_asks_within) return true;
    // The call that asked may need no more than that the process is not deep: all of it wakes then.
    return wake.times_back != operations_.deep.times_back() || gate::Gate::instance().wants_waking();
}

void TouchWaker::note_shortage(Wake& wake, Error shortage) {
    constexpr Milliseconds k_moment{3'000}; // to wait for that long is nothing to speak of among turns
    wake.times_back = operations_.deep.times_back();
    const bool takes_turns = request_.make_room; // then it has asked the holders already
    if (!wake.holders && !takes_turns) wake.holders = operations_.holders(request_);
    if (wake.holders && !wake.holders->words.empty()) shortage.message += "; " + wake.holders->words;
    if (wake.holders && wake.holders->could_sleep)
        shortage.message += fmt::format("; to put other processes to sleep for it: gpu-wake {} --make-room; "
                                        "next time, start it with gpu-run --share",
                                        ::getpid());
    const bool waits_for_time = takes_turns && operations_.room.waits_for_time();
    if (waits_for_time) shortage.message += fmt::format("; to go first: gpu-switch {}", ::getpid());
    const bool waits_for_turn = takes_turns && operations_.room.waits_for_turn();
    const bool is_early = takes_turns && Clock::now() - wake.since < k_moment;
    tell(shortage, is_early         ? nullptr
                   : waits_for_turn ? &is_turn_said_
                   : waits_for_time ? &is_time_said_
                                    : &is_trouble_said_);
}

void TouchWaker::note_end(const server::Outcome& outcome) {
    is_under_way_ = false;
    const auto* const failure = std::get_if<model::Failure>(&outcome);
    if (!failure || operations_.status.state() == model::State::awake) is_trouble_said_ = false;
    if (failure && failure->error.code != ErrorCode::cancelled)
        return tell(failure->error, &is_trouble_said_);
    if (failure) gate::Gate::instance().wake_cancelled();
    operations_.status.note(&operations::ProcessStatus::Notes::touch_trouble, {});
}

void TouchWaker::tell(const Error& error, std::atomic<bool>* is_said) {
    gate::Gate::instance().wake_refused();
    const bool is_final = error.code == ErrorCode::damaged || error.code == ErrorCode::context_lost;
    const auto trouble = is_final ? fmt::format("GPU work cannot wake this process: {}; {}", error.message,
                                                traits(error.code).advice)
                                  : "GPU work could not wake this process yet: " + error.message;
    if (is_said && !is_said->exchange(true)) log::warning("{}", trouble);
    operations_.status.note(&operations::ProcessStatus::Notes::touch_trouble, trouble);
}

} // namespace gpu_sleep::agent::lifecycle
