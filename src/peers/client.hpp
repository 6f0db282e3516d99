// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sending requests to several agents at once, and waiting for their answers, each with a time limit.

#pragma once

#include "base/fd.hpp"
#include "peers/answer_timeout.hpp"
#include "protocol/messages.hpp"

#include <cstddef>
#include <functional>
#include <variant>
#include <vector>

namespace gpu_sleep::peers {

/// The result of a request: the agent's final reply, or why there is none.
using Answer = std::variant<model::Report, model::Failure, Error>;

/// Why it failed, or was not answered; null where it was done.
[[nodiscard]] const Error* error_of(const Answer& answer) noexcept;

/// One request to one agent.
struct Question {
    UniqueFd socket; ///< connected and non-blocking
    protocol::Request request;
    AnswerTimeout::Limits timeout;
    std::function<bool()> is_stopped = [] { return false; }; ///< whether the agent's process is
};

/// Receives the events of the questions, each with the index of its question.
struct Observer {
    std::function<void(std::size_t, const model::Progress&)> progress = [](auto, const auto&) {};
    /// Called once for each, when it ends.
    std::function<void(std::size_t, const Answer&)> answered = [](auto, const auto&) {};
    /// Called for each that is past the point of no return when an interruption comes.
    std::function<void(std::size_t)> past_return = [](auto) {};
    int interruptions = -1;                          ///< readable when there is one; or negative
    std::function<void()> take_interruption = [] {}; ///< removes one
};

/// Sends all questions, then waits until each is answered or has timed out; the answers are in the same
/// order. Closes the sockets. The first interruption withdraws all requests: an agent undoes what it did.
/// Those past the point of no return are waited for, until a second interruption.
///
/// An Error in place of an answer: invalid_argument, protocol_mismatch, connection_lost, timed_out,
/// cancelled: the agent has not passed the point of no return, and will not. outcome_unknown: it has, and did
/// not report the result.
[[nodiscard]] std::vector<Answer> ask_all(std::vector<Question> questions, const Observer& observer = {});

} // namespace gpu_sleep::peers
