// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking agents, and waiting for their answers: several at a time, each with a limit.

#pragma once

#include "base/fd.hpp"
#include "cli/answer_timeout.hpp"
#include "protocol/messages.hpp"

#include <cstddef>
#include <functional>
#include <variant>
#include <vector>

namespace gpu_sleep::cli {

/// How a request ended: the agent's word, or why there is none.
using Answer = std::variant<model::Report, model::Failure, Error>;

/// One request to one agent.
struct Question {
    UniqueFd socket; ///< connected and non-blocking
    protocol::Request request;
    AnswerTimeout::Limits timeout;
    std::function<bool()> is_stopped = [] { return false; }; ///< whether the agent's process is
};

/// Is told of questions, each by its index, what becomes of them.
struct Observer {
    std::function<void(std::size_t, const model::Progress&)> progress = [](auto, const auto&) {};
    /// Told once of each, as it ends.
    std::function<void(std::size_t, const Answer&)> answered = [](auto, const auto&) {};
    /// Told of each that an interruption comes too late for.
    std::function<void(std::size_t)> past_return = [](auto) {};
    int interruptions = -1;                          ///< readable: there is one; or negative
    std::function<void()> take_interruption = [] {}; ///< takes one from there
};

/// Sends all questions, then waits until each is answered or has timed out; the answers are in the same
/// order. Closes the sockets. The first interruption withdraws all requests: an agent undoes what it did,
/// unless it is past the point of no return; that is waited for, until a second one.
///
/// An Error in place of an answer: invalid_argument, protocol_mismatch, connection_lost, timed_out,
/// cancelled: the agent has not passed the point of no return, and will not. outcome_unknown: it has, and did
/// not say how it ended.
[[nodiscard]] std::vector<Answer> ask_all(std::vector<Question> questions, const Observer& observer = {});

} // namespace gpu_sleep::cli
