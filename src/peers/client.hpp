// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sending requests to several agents at once, and waiting for their answers, each with a time limit.

#pragma once

#include "peers/conversation.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace gpu_sleep::peers {

/// What withdraws questions; by itself, nothing does. Not thread-safe.
class Interruptions {
public:
    Interruptions() = default;
    Interruptions(const Interruptions&) = delete;
    Interruptions& operator=(const Interruptions&) = delete;
    virtual ~Interruptions() = default;

    /// Readable when one has come; negative if none can.
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Whether one has come, now or before. Takes one, so that fd() tells of the next.
    virtual bool has_come() noexcept { return false; }

protected:
    explicit Interruptions(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

private:
    UniqueFd fd_;
};

/// Receives the events of the questions, each with the index of its question.
struct Observer {
    std::function<void(std::size_t, const model::Progress&)> progress = [](auto, const auto&) {};
    /// Called once for each, when it ends.
    std::function<void(std::size_t, const Answer&)> answered = [](auto, const auto&) {};
    /// Called for each that is past the point of no return when an interruption comes.
    std::function<void(std::size_t)> past_return = [](auto) {};
    /// Called every second, if it is set, while some are not answered: what else to ask, with the indices
    /// that follow. Nothing: withdraw what is not answered.
    std::function<std::optional<std::vector<Question>>()> more = {};
    Interruptions* interruptions = nullptr; ///< none if null
};

/// Sends all questions, then waits until each is answered or has timed out; the answers are in the same
/// order. Closes the sockets. The first interruption withdraws all requests: an agent undoes what it did.
/// Those past the point of no return are waited for, until a second interruption.
///
/// An Error in place of an answer: invalid_argument, protocol_mismatch, connection_lost, timed_out,
/// cancelled: the agent has not passed the point of no return, and will not. outcome_unknown: it has, and did
/// not report the result.
[[nodiscard]] std::vector<Answer> ask_all(std::vector<Question> questions, const Observer& observer = {});

/// What holds for all that sleep or wake together.
struct Joint {
    bool is_sleep = true;
    Clock::time_point end = Clock::time_point::max(); ///< when all must be ready
    /// Asked when all are ready, before any passes the point of no return. Errors: why all are to go back.
    std::function<Result<void>()> consent = [] { return Result<void>(); };
};

/// Asks all, by joint requests of which there is one at least, and has them pass the point of no return when
/// all are ready; see Together. If one cannot, all requests are withdrawn, as by an interruption: the answers
/// of the others are `cancelled` then. Those that have been told to pass that point are waited for.
[[nodiscard]] std::vector<Answer> ask_together(std::vector<Question> questions, const Joint& joint,
                                               const Observer& observer = {});

} // namespace gpu_sleep::peers
