// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decides which member of a joint sleep or wake is told to go on, and when.

#include "client/together.hpp"

namespace gpu_sleep::client {

using Phase = model::Progress::Phase;

Together::Together(std::size_t members, bool is_sleep, Clock::time_point end)
    : members_(members), is_sleep_(is_sleep), end_(end) {
    for (std::size_t i = 0; i < members; ++i) members_[i].group = i;
}

void Together::Member::enter(State entered) noexcept {
    state = entered;
    holds = drains = false;
}

bool Together::any(State state) const noexcept {
    return std::ranges::any_of(members_, [=](const Member& each) { return each.state == state; });
}

std::optional<std::size_t> Together::next_to_ask() noexcept {
    if (any(State::asked) || any(State::failed)) return std::nullopt;
    const auto next = std::ranges::find(members_, State::unasked, &Member::state);
    if (next == members_.end()) return std::nullopt;
    next->state = State::asked;
    return static_cast<std::size_t>(next - members_.begin());
}

void Together::hear(std::size_t member, const model::Progress& progress, Clock::time_point now) noexcept {
    auto& each = members_[member];
    if (each.state == State::done || each.state == State::failed) return;
    switch (progress.phase) {
    case Phase::drained:
        if (progress.done < each.told) return; // it was said before that was heard
        changed_ = now;
        rounds_of_undrained_ = 0;
        if (each.state == State::begun && each.told > 0 && turn_ && member != *turn_) {
            each.is_freed = true;
            join(members_[*turn_].group, each.group);
        }
        each.enter(State::drained);
        each.holds = progress.held > 0;
        return;
    case Phase::ready: each.enter(State::ready); return;
    default:
        if (each.state == State::asked) each.state = State::begun;
        if (each.state != State::begun) return;
        const bool drains = progress.phase == Phase::drain;
        if (drains && !each.drains) changed_ = now;
        each.drains = drains;
    }
}

void Together::join(std::size_t group, std::size_t other) noexcept {
    for (auto& each : members_)
        if (each.group == other) each.group = group;
}

void Together::end(std::size_t member, bool has_failed) noexcept {
    members_[member].enter(has_failed ? State::failed : State::done);
}

std::vector<Together::Word> Together::due(Clock::time_point now) {
    std::vector<Word> words;
    if (has_committed_ || why_not(now)) return words;
    const bool is_behind = any(State::unasked) || any(State::asked) || any(State::begun);
    if (!is_behind)
        for (std::size_t i = 0; i < members_.size(); ++i)
            if (members_[i].state == State::drained) {
                words.push_back({i, {Kind::prepare}});
                members_[i].state = State::preparing;
            }
    if (is_behind) add_releases(words, now);
    if (!anyone_waits()) {
        last_sign_.reset();
    } else if (!last_sign_) {
        last_sign_ = now;
    } else if (now - *last_sign_ >= k_sign_of_life) {
        last_sign_ = now;
        for (std::size_t i = 0; i < members_.size(); ++i)
            if (members_[i].state == State::drained || members_[i].state == State::ready)
                words.push_back({i, {Kind::hold_on}});
    }
    return words;
}

Together::Source Together::source() const noexcept {
    if (!is_sleep_) return Source::nobody;
    const auto is_stuck = [](const Member& each) {
        return (each.state == State::begun && each.drains) || each.state == State::drained ||
               each.state == State::ready || each.state == State::done;
    };
    if (longest_waiting(Of::all)) return Source::drained;
    const bool is_behind = any(State::begun);
    return is_behind && std::ranges::all_of(members_, is_stuck) ? Source::undrained : Source::nobody;
}

Milliseconds Together::rest() const noexcept {
    const auto doubled = [](Milliseconds time, unsigned times) {
        constexpr unsigned k_most = 10;
        return time * (1U << std::min(times, k_most));
    };
    if (source() == Source::drained) {
        const bool is_out = turn_ && members_[*turn_].state == State::begun;
        const auto word = is_out ? std::min(last_count_ * k_each_takes, k_longest_word) : Milliseconds(0);
        return std::min(doubled(k_rest + word, static_cast<unsigned>(turns_ / k_turns_at_a_pace)),
                        k_longest_rest);
    }
    if (any(State::drained)) return doubled(k_rest_beside_drained, rounds_beside_drained_);
    if (rounds_of_undrained_ == 0) return k_rest_of_undrained;
    return std::min(doubled(k_rest, rounds_of_undrained_ / k_rounds_at_a_pace), k_longest_rest);
}

bool Together::can_let_through(std::size_t member) const noexcept {
    return members_[member].state == State::drained && members_[member].holds;
}

bool Together::is_settled(std::size_t member) const noexcept {
    bool has_others = false;
    for (std::size_t i = 0; i < members_.size(); ++i) {
        if (i == member || members_[i].group != members_[member].group) continue;
        has_others = true;
        if (is_behind(i)) return false;
    }
    return has_others || members_[member].last_turn > 0;
}

std::optional<std::size_t> Together::longest_waiting(Of whom) const noexcept {
    std::optional<std::size_t> longest;
    for (std::size_t i = 0; i < members_.size(); ++i) {
        if (!can_let_through(i) || (whom == Of::freed && !members_[i].is_freed)) continue;
        if (whom != Of::all && is_settled(i)) continue;
        if (!longest || members_[i].last_turn < members_[*longest].last_turn) longest = i;
    }
    return longest;
}

Together::Word Together::next_in_turn() noexcept {
    const auto times_all =
        turn_is_guess_ ? 0 : std::min<std::uint64_t>(turns_ / members_.size(), k_most_doublings);
    const bool may_go_on = turn_ && can_let_through(*turn_) && let_through_ < k_turn << times_all;
    auto next = longest_waiting(Of::freed);
    if (!next) next = may_go_on && !is_settled(*turn_) ? turn_ : longest_waiting(Of::unsettled);
    const bool is_guess = !next; // somebody who is settled works with more than is known
    if (is_guess) next = may_go_on && turn_is_guess_ ? turn_ : longest_waiting(Of::all);
    turn_is_guess_ = is_guess;
    if (next != turn_ || !may_go_on) {
        turn_ = next;
        rounds_in_turn_ = 0;
        let_through_ = 0;
        ++turns_;
    }
    const auto doublings = std::max(rounds_in_turn_, k_rounds_of_one) - k_rounds_of_one;
    const auto count = std::uint32_t{1} << std::min(doublings, k_most_doublings);
    ++rounds_in_turn_;
    let_through_ += count;
    last_count_ = count;
    members_[*turn_].is_freed = false;
    members_[*turn_].last_turn = turns_;
    return {*turn_, {Kind::let_through, count}};
}

void Together::add_releases(std::vector<Word>& words, Clock::time_point now) {
    const auto from = source();
    if (from == Source::nobody || now - changed_ < rest()) return;
    changed_ = now;
    const auto let_through = [&](Word word) {
        words.push_back(word);
        members_[word.member].enter(State::begun);
        members_[word.member].drains = true;
        ++members_[word.member].told;
    };
    if (from == Source::drained) return let_through(next_in_turn());
    turn_.reset(); // who is drained now is so by its own
    ++(any(State::drained) ? rounds_beside_drained_ : rounds_of_undrained_);
    for (std::size_t i = 0; i < members_.size(); ++i)
        if (members_[i].state == State::begun) let_through({i, {Kind::let_through}});
}

Clock::time_point Together::next_time(Clock::time_point now) const noexcept {
    if (has_committed_) return Clock::time_point::max();
    auto next = end_;
    if (last_sign_) next = std::min(next, *last_sign_ + k_sign_of_life);
    if (source() != Source::nobody) next = std::min(next, std::max(changed_ + rest(), now + Milliseconds(1)));
    return next;
}

bool Together::all_are_ready() const noexcept {
    return !has_committed_ && any(State::ready) && std::ranges::all_of(members_, [](const Member& each) {
        return each.state == State::ready || each.state == State::done;
    });
}

std::vector<std::size_t> Together::commit() {
    has_committed_ = true;
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < members_.size(); ++i)
        if (members_[i].state == State::ready) members.push_back(i);
    return members;
}

std::optional<Together::Why> Together::why_not(Clock::time_point now) const noexcept {
    if (has_committed_) return std::nullopt;
    if (any(State::failed)) return Why::member_failed;
    if (last_sign_ && now - *last_sign_ >= k_longest_silence) return Why::command_was_stopped;
    if (now >= end_ && !all_are_ready()) return Why::late;
    return std::nullopt;
}

bool Together::is_behind(std::size_t member) const noexcept {
    const auto state = members_[member].state;
    return state != State::drained && state != State::ready && state != State::done;
}

} // namespace gpu_sleep::client
