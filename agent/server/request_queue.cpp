// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whose turn it is.

#include "server/request_queue.hpp"

namespace gpu_sleep::agent::server {
namespace {

constexpr Milliseconds k_least_pause{50};

} // namespace

Milliseconds RequestQueue::Place::time_left(Clock::time_point now) const noexcept {
    if (shortage_) return std::chrono::duration_cast<Milliseconds>(shortage_->until - now);
    const auto* const wake = std::get_if<model::WakeRequest>(&job_.operation);
    if (wake && job_.asker != Asker::command) return Milliseconds::max();
    const auto limit = model::terms_in(job_.operation)->timeout + (wake ? wake->wait : Milliseconds(0));
    return limit - std::chrono::duration_cast<Milliseconds>(now - job_.since);
}

void RequestQueue::add(Job job) {
    places_.emplace_back(std::move(job));
}

RequestQueue::Place* RequestQueue::first_untried() noexcept {
    const auto found = std::find_if(places_.begin(), places_.end(), [](const Place& place) {
        return !place.runs_ && place.shortage_ && !place.shortage_->is_tried;
    });
    return found == places_.end() ? nullptr : &*found;
}

RequestQueue::Place* RequestQueue::due(Clock::time_point now) noexcept {
    if (auto* const place = first_untried()) return place;
    if (now < next_round_) return nullptr;
    for (auto& place : places_)
        if (place.shortage_) place.shortage_->is_tried = false;
    return first_untried();
}

RequestQueue::Place* RequestQueue::next(Clock::time_point now) noexcept {
    const auto in_line = [](const Place& place) { return !place.runs_ && !place.shortage_; };
    const auto found = std::find_if(places_.begin(), places_.end(), in_line);
    auto* const fresh = found == places_.end() ? nullptr : &*found;
    auto* const tried = fresh && has_tried_last_ ? nullptr : due(now);
    auto* const chosen = tried ? tried : fresh;
    if (!chosen) return nullptr;
    has_tried_last_ = chosen == tried;
    chosen->runs_ = true;
    return chosen;
}

Clock::time_point RequestQueue::next_time() const noexcept {
    auto time = Clock::time_point::max();
    for (const auto& place : places_) {
        if (place.runs_) continue;
        const bool waits = place.shortage_ && place.shortage_->is_tried;
        time = std::min(time, waits ? next_round_ : Clock::time_point::min());
    }
    return time;
}

bool RequestQueue::waits(Place& place, model::Failure& why, Clock::time_point begun, Clock::time_point now,
                         Milliseconds pause) noexcept {
    const auto* const wake = std::get_if<model::WakeRequest>(&place.job_.operation);
    if (!wake || why.error.code != ErrorCode::out_of_device_memory) return false;
    const auto since = place.shortage_ ? place.shortage_->since : begun;
    // In all no longer than it was to take: others that came before may have taken some of that.
    const auto& job = place.job_;
    const auto limit = job.asker != Asker::command
                           ? begun + wake->wait
                           : std::min(begun + wake->wait, job.since + wake->timeout + wake->wait);
    const auto until = place.shortage_ ? place.shortage_->until : limit;
    if (now + k_least_pause > until) return false;
    place.shortage_ = Place::Shortage{since, until, true, std::move(why)};
    place.runs_ = false;
    const auto next =
        std::clamp(until - k_least_pause, now + k_least_pause, now + std::max(pause, k_least_pause));
    if (!first_untried()) next_round_ = std::exchange(has_ended_, false) ? now : next;
    return true;
}

Job RequestQueue::leave(Place& place, Clock::time_point now) noexcept {
    // Now there may be room, or nothing left to do: whoever waits need not wait for its time.
    if (first_untried())
        has_ended_ = true;
    else
        next_round_ = now;
    auto job = std::move(place.job_);
    places_.remove_if([&](const Place& each) { return &each == &place; });
    return job;
}

std::optional<RequestQueue::Late> RequestQueue::take_late(Clock::time_point now, bool own_alone) noexcept {
    const auto late = std::find_if(places_.begin(), places_.end(), [=](const Place& place) {
        const bool is_meant = !own_alone || place.job_.asker != Asker::command;
        return is_meant && !place.runs_ && place.time_left(now) <= Milliseconds(0);
    });
    if (late == places_.end()) return std::nullopt;
    Late taken{std::move(late->job_), std::nullopt};
    if (late->shortage_) taken.why = std::move(late->shortage_->why);
    places_.erase(late);
    return taken;
}

bool RequestQueue::makes_room() const noexcept {
    return std::any_of(places_.begin(), places_.end(), [](const Place& place) {
        const auto* const wake = std::get_if<model::WakeRequest>(&place.job_.operation);
        return wake && wake->make_room;
    });
}

std::vector<model::WaitingWake> RequestQueue::waiting(Clock::time_point now,
                                                      std::uint32_t place_in_line) const {
    std::vector<model::WaitingWake> wakes;
    for (const auto& place : places_) {
        if (!place.shortage_) continue;
        const auto& shortage = *place.shortage_;
        const auto& wake = std::get<model::WakeRequest>(place.job_.operation);
        wakes.push_back({wake.tags, place.job_.asker == Asker::touch,
                         std::chrono::duration<double>(now - shortage.since).count(),
                         shortage.why.error.message, wake.make_room ? place_in_line : 0});
    }
    return wakes;
}

} // namespace gpu_sleep::agent::server
