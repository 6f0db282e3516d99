// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking agents, and waiting for their answers: several at a time, each with a limit.

#pragma once

#include "base/fd.hpp"
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
    /// How long the agent may be silent. Progress counts as a sign of life, except in answer to a status
    /// request, which has none to report.
    Milliseconds patience{10'000};
};

/// Is told how far the question of that index has come.
using ProgressSink = std::function<void(std::size_t index, const model::Progress& progress)>;

/// Sends all questions, then waits until each is answered or out of patience; the answers are in the same
/// order. Closes the sockets, by which an agent that is still at work learns that nobody waits any more and
/// undoes what it did. An Error in place of an answer: connection_lost, timed_out, protocol_mismatch,
/// invalid_argument.
[[nodiscard]] std::vector<Answer> ask_all(std::vector<Question> questions, const ProgressSink& sink);

} // namespace gpu_sleep::cli
