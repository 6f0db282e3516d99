// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One question on its way to one agent: what is said, heard, waited for and given up.

#pragma once

#include "base/threads.hpp"
#include "client/answer_timeout.hpp"
#include "protocol/messages.hpp"

#include <poll.h>

namespace gpu_sleep::client {

/// The result of a request: the agent's final reply, or why there is none.
using Answer = std::variant<model::Report, model::Failure, Error>;

/// Why it failed, or was not answered; null where it was done.
[[nodiscard]] const Error* error_of(const Answer& answer) noexcept;

/// Why there was no sleep, or would be none, where one was asked for, or rehearsed; empty: there was, or
/// nothing is known against it.
[[nodiscard]] std::string refusal_in(const Answer& answer);

/// The report that the frame `bytes` holds, as an agent publishes it; empty if they are anything else.
[[nodiscard]] std::optional<model::Report> report_in(std::string_view bytes);

/// One request to one agent.
struct Question {
    UniqueFd socket;                  ///< connected and non-blocking
    const protocol::Request* request; ///< outlives the question
    AnswerTimeout::Limits timeout;
    std::function<bool()> is_stopped = [] { return false; }; ///< whether the agent's process is
    /// What has the driver take the rest of the process, which keeps still meanwhile (Progress::Phase::deep):
    /// called one after another until one fails, each on a thread of its own, which may outlive the question.
    /// A failure becomes the answer, with how the agent says that the process stands then.
    std::vector<std::function<Result<void>()>> deep_steps = {};
    /// Makes the socket when the request is sent, if it is set, and there is none or it goes together with
    /// others.
    std::function<Result<UniqueFd>()> connect = {};
};

/// Bytes still to send, bytes received so far, the answer once it is there. Driven by the poll loop of its
/// owner. Not thread-safe.
class Conversation {
public:
    /// `goes_together`: with others, and begins later.
    explicit Conversation(Question question, bool goes_together = false);

    /// Begins it, if it was not to begin at once.
    void begin();

    [[nodiscard]] bool is_over() const noexcept { return answer_.has_value(); }
    [[nodiscard]] bool is_past_return() const noexcept { return timeout_.is_past_return(); }
    /// Whether the answer, taken or not, is a failure. Only once the conversation is over.
    [[nodiscard]] bool has_failed() const noexcept {
        return !std::holds_alternative<model::Report>(*answer_);
    }
    /// Returns the answer: once, when the conversation is over.
    [[nodiscard]] Answer take_answer() noexcept { return std::move(*answer_); }
    /// When to call keep_time().
    [[nodiscard]] Clock::time_point next_time() const noexcept;
    [[nodiscard]] pollfd interest() const noexcept;

    /// Goes on after `interest` has come true. Returns what the agent has told since.
    [[nodiscard]] std::vector<model::Progress> advance();

    /// Says it to an agent whose request is joint.
    void say(model::Directive directive);

    /// Withdraws the request, unless that is too late. `why` stands for its being withdrawn in the answer.
    void withdraw(std::optional<Error> why = {});

    /// Gives up when it is time to.
    void keep_time();

    /// Stops waiting; `why` is in the answer. Nothing that the agent sends from here on arrives, nor can it
    /// be sent: if it has not passed the point of no return by now, it never will. Only while a step is under
    /// way the agent hears nothing of it, and waits until that has ended.
    void give_up(const std::optional<Error>& why);

    // ---- Question::deep_steps

    /// Whether the agent waits for the next step, which is steps_done() then.
    [[nodiscard]] bool awaits_step() const noexcept {
        return is_in_phase_deep_ && !is_over() && !deep_ && !call_;
    }
    /// Whether steps up to this one may still have to be taken.
    [[nodiscard]] bool is_before_step(std::size_t step) const noexcept {
        return !is_over() && !deep_ && steps_done_ < step;
    }
    [[nodiscard]] std::size_t steps_done() const noexcept { return steps_done_; }
    /// Begins the next step, on a thread of its own.
    void begin_step();
    [[nodiscard]] bool has_step_under_way() const noexcept { return !is_over() && call_.has_value(); }
    /// Comes true when the step under way has ended.
    [[nodiscard]] pollfd interest_in_step() const noexcept;
    void note_end_of_step();

private:
    /// The time allowed begins.
    void start() noexcept;
    void send();
    /// Takes what has come, and adds what the agent tells to `told`. False when there was nothing.
    bool receive(std::vector<model::Progress>& told);
    void accept(const protocol::FrameReader::Frame& frame, std::vector<model::Progress>& told);
    void hear(const model::Progress& progress);
    /// Says it of the process at "debug", unless only its status is asked for.
    void log_event(std::string_view what) const noexcept;
    /// Says nothing more. An agent in the phase deep takes the driver's part for done from then on: a step
    /// that is taken later locks a process that nobody unlocks.
    void shut() noexcept;
    /// All steps are taken, or one has failed. The agent waits for that, and then for the end of what is sent
    /// to it.
    void end_steps(Result<void> deep);
    /// Ends without the agent's word on how it ended.
    void end(Error error);

    /// When to look whether the process is stopped.
    [[nodiscard]] Clock::time_point next_look() const noexcept;
    [[nodiscard]] Error unanswered(const std::optional<Error>& why) const;
    [[nodiscard]] Error withdrawn() const;

    Question question_;
    std::vector<std::byte> unsent_;
    protocol::FrameReader reader_;
    std::size_t received_ = 0; ///< bytes
    Clock::time_point start_;
    AnswerTimeout timeout_;
    Clock::time_point looked_{}; ///< at whether it is stopped
    bool is_joint_ = false;
    bool is_begun_ = false;
    bool is_sent_ = false; ///< or some of it
    bool is_withdrawn_ = false;
    std::optional<Error> why_withdrawn_;
    Clock::time_point withdrawn_until_{};
    bool is_shut_ = false;
    bool has_last_word_ = false;
    bool is_in_phase_deep_ = false;
    std::optional<std::pair<model::Progress::Phase, bool>> heard_; ///< the last phase, and whether in a call
    std::size_t steps_done_ = 0;                                   ///< of Question::deep_steps
    std::optional<BackgroundCall> call_;                           ///< the step under way
    std::optional<Result<void>> deep_;                             ///< how all steps came out
    std::optional<Answer> answer_;
};

} // namespace gpu_sleep::client
