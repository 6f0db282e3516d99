// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Plan, ask, look, and again if that was not enough, or is slow.

#include "client/room.hpp"

namespace gpu_sleep::client {
namespace {

/// Puts to sleep until there is room.
class RoomMaker {
public:
    RoomMaker(const std::vector<Holder>& holders, const std::function<Result<BytesByGpu>()>& look,
              const model::SleepRequest& request)
        : holders_(holders), look_(look), request_(request) {
        candidates_.reserve(holders.size());
        requests_.reserve(holders.size());
        for (const auto& holder : holders) {
            const auto& sleep = holder.request ? *holder.request : request;
            candidates_.push_back(candidate_of(holder.status, sleep.min_awake.value_or(Milliseconds(0))));
            const auto& idle = holder.only_if_idle;
            requests_.push_back(idle ? protocol::Request(model::IdleSleepRequest{sleep, *idle}) : sleep);
        }
    }

    [[nodiscard]] Result<RoomMade> run() {
        std::vector<std::size_t> chosen;
        for (;;) {
            if (auto looked = look_again(); !looked) return without_look(std::move(looked).error());
            chosen = plan_room(candidates_, made_.missing);
            if (made_.missing.empty() || chosen.empty() || Clock::now() >= end_) break;
            if (auto looked = ask(chosen); !looked) return without_look(std::move(looked).error());
            if (request_.dry_run) break;
        }
        if (made_.missing.empty()) return std::move(made_);
        made_.wait = seconds_until_room(candidates_, made_.missing);
        made_.inhibited_for = seconds_until_inhibitors_end();
        for (auto& candidate : candidates_)
            if (chosen.empty() && against(candidate).empty())
                candidate.against = "it could sleep, but that would not be enough";
        made_.against = describe(holders_, candidates_, made_.missing);
        return std::move(made_);
    }

private:
    /// Returns the result if the GPU cannot be looked at any more.
    [[nodiscard]] Result<RoomMade> without_look(Error error) {
        if (made_.slept.empty()) return error;
        made_.error = std::move(error);
        return std::move(made_);
    }

    [[nodiscard]] double seconds_until_inhibitors_end() const {
        auto willing = candidates_;
        for (std::size_t i = 0; i < willing.size(); ++i) {
            const auto& status = holders_[i].status;
            const auto rest = status.inhibited_seconds.value_or(std::numeric_limits<double>::infinity());
            willing[i].protected_for = status.inhibited ? rest : 0;
            willing[i].against.clear();
        }
        return seconds_until_room(willing, made_.missing).value_or(0);
    }

    [[nodiscard]] Result<void> look_again() {
        auto missing = GPU_SLEEP_TRY(look_());
        std::erase_if(missing, [](const auto& each) { return each.second == 0; });
        made_.missing = std::move(missing);
        return {};
    }

    /// Asks all of `chosen` at once, and others beside those that are slow.
    [[nodiscard]] Result<void> ask(const std::vector<std::size_t>& chosen) {
        constexpr Milliseconds k_between{1'000};
        asked_.clear();
        Conversations conversations(questions_for(chosen));
        Result<void> looked;
        auto next_look = request_.dry_run ? Clock::time_point::max() : Clock::now() + k_between;
        for (;;) {
            if (auto event = conversations.next(next_look)) {
                if (auto* const answer = std::get_if<Answer>(&event->what))
                    note(asked_[event->question], std::move(*answer));
                continue;
            }
            if (conversations.are_over()) return looked;
            looked = look_again();
            next_look = Clock::now() + k_between;
            if (looked && !made_.missing.empty() && Clock::now() < end_) {
                conversations.add(questions_for(plan_room(candidates_, made_.missing)));
            } else {
                conversations.withdraw();
                next_look = Clock::time_point::max();
            }
        }
    }

    [[nodiscard]] std::vector<Question> questions_for(const std::vector<std::size_t>& chosen) {
        constexpr Milliseconds k_grace{2'000};
        std::vector<Question> questions;
        for (const auto index : chosen) {
            auto socket = holders_[index].connect();
            if (!socket) {
                note(index, std::move(socket).error());
                continue;
            }
            candidates_[index].against = "it is going to sleep, but did not finish in time";
            asked_.push_back(index);
            questions.push_back(
                {*std::move(socket),
                 &requests_[index],
                 {.answer = request_.timeout, .grace = k_grace, .copies_freely = !request_.bounds_all}});
        }
        return questions;
    }

    void note(std::size_t index, Answer answer) {
        const auto* const error = error_of(answer);
        if (error && error->code == ErrorCode::cancelled) return; // withdrawn: it is as it was
        auto& candidate = candidates_[index];
        candidate.against = refusal_in(answer);
        if (candidate.against.empty()) {
            candidate = {};
            candidate.against = "it sleeps";
        }
        made_.slept.push_back({index, std::move(answer)});
    }

    static constexpr Milliseconds k_limit{120'000}; ///< where the request has none

    const std::vector<Holder>& holders_;
    const std::function<Result<BytesByGpu>()>& look_;
    const model::SleepRequest& request_;
    const Clock::time_point end_ = Clock::now() + (request_.bounds_all ? request_.timeout : k_limit);
    std::vector<protocol::Request> requests_; ///< to each holder
    std::vector<Candidate> candidates_;
    std::vector<std::size_t> asked_; ///< by the indices of the questions
    RoomMade made_;
};

} // namespace

model::SleepRequest room_request(Milliseconds min_awake) {
    model::SleepRequest request;
    request.on_touch = model::OnTouch::wake;
    request.min_awake = min_awake;
    return request;
}

std::vector<std::string> describe(const std::vector<Holder>& holders,
                                  const std::vector<Candidate>& candidates, const BytesByGpu& gpus) {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < holders.size(); ++i) {
        Bytes bytes = 0;
        for (const auto& [gpu, missing] : gpus)
            if (const auto its = candidates[i].frees.find(gpu); its != candidates[i].frees.end())
                bytes += its->second;
        if (bytes == 0) continue;
        const auto why = against(candidates[i]);
        lines.push_back(fmt::format("{} has {}{}", holders[i].title, format_bytes(bytes),
                                    why.empty() ? std::string(" and could sleep") : ": " + why));
    }
    return lines;
}

Result<RoomMade> make_room(const std::vector<Holder>& holders,
                           const std::function<Result<BytesByGpu>()>& look,
                           const model::SleepRequest& request) {
    return RoomMaker(holders, look, request).run();
}

} // namespace gpu_sleep::client
