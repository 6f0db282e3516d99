// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which events extend the wait, and which do not.

#include "client/answer_timeout.hpp"

namespace gpu_sleep::client {

AnswerTimeout::AnswerTimeout(const Limits& limits, Clock::time_point now) noexcept
    : limits_(limits), end_(now + limits.answer + limits.grace),
      end_if_stopped_(std::min(end_, now + k_unheard_if_stopped)),
      end_if_stopped_once_heard_(std::min(end_, now + limits.answer + k_grace_if_stopped)) {}

void AnswerTimeout::hear(const model::Progress& progress, Clock::time_point now) noexcept {
    using Phase = model::Progress::Phase;
    end_if_stopped_ = std::max(end_if_stopped_, end_if_stopped_once_heard_);
    if (limits_.copies_freely || is_past_return()) hear_of_call(progress.in_call, now);
    if (progress.phase == Phase::deep && is_past_return()) {
        end_if_stopped_ = now + k_release_if_stopped;
        return;
    }
    if (is_past_return_) return;
    if (progress.phase == Phase::release) {
        pass_return(now);
    } else if (progress.phase == Phase::transfer && limits_.copies_freely) {
        hear_of_copying(progress.done, progress.total, now);
    }
}

void AnswerTimeout::pass_return(Clock::time_point now) noexcept {
    is_past_return_ = true;
    is_held_ = false; // it goes on, whoever told it to
    end_ = now + k_release + limits_.afterwards;
    end_if_stopped_ = end_if_stopped_once_heard_ = now + k_release_if_stopped;
}

void AnswerTimeout::resume(Clock::time_point now) noexcept {
    if (!std::exchange(is_held_, false)) return;
    end_ = std::max(end_, now + limits_.answer + limits_.grace);
    end_if_stopped_ = std::max(end_if_stopped_, now + limits_.answer + k_grace_if_stopped);
}

void AnswerTimeout::send_past_return(Clock::time_point now) noexcept {
    is_held_ = false;
    if (!is_past_return_) pass_return(now);
}

void AnswerTimeout::start_call(Clock::time_point now) noexcept {
    is_held_ = false;
    end_ = now + limits_.answer + k_checkpoint;
    end_if_stopped_ = now + k_release_if_stopped;
}

void AnswerTimeout::end_call(Clock::time_point now) noexcept {
    is_held_ = false;
    end_ = now + k_release + limits_.afterwards;
    end_if_stopped_ = now + k_release_if_stopped;
}

void AnswerTimeout::hear_of_call(bool is_in_one, Clock::time_point now) noexcept {
    if (is_in_one == in_call_since_.has_value()) return;
    if (is_in_one) {
        in_call_since_ = now;
        return;
    }
    const auto spent = std::min(calls_left_, now - *std::exchange(in_call_since_, std::nullopt));
    calls_left_ -= spent;
    end_ += spent;
}

void AnswerTimeout::hear_of_copying(Bytes done, Bytes total, Clock::time_point now) noexcept {
    if (total > limits_.bytes || done > total) return;
    const bool begins = attempts_ == 0 || total != total_ || done < done_;
    if (begins && attempts_ == k_max_attempts) return;
    if (begins) {
        ++attempts_;
        total_ = total;
        rewarded_ = done;
    }
    done_ = done;
    if (!begins && done - rewarded_ < k_min_advance) return;
    rewarded_ = done;
    const auto due = now + k_stall;
    end_ = std::max(end_, due + limits_.grace);
    end_if_stopped_ = std::max(end_if_stopped_, due + k_grace_if_stopped);
}

} // namespace gpu_sleep::client
