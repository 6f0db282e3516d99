// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding the agents of other processes of this user by their sockets, as an agent can, and asking agents.

#pragma once

#include "base/process.hpp"
#include "client/conversation.hpp"
#include "client/together.hpp"

namespace gpu_sleep::client {

/// The agents in the directory that this user's processes share. Thread-safe. Takes no lock of the loader's,
/// and asks no name service.
class Neighbours {
public:
    /// Errors: io_failed (this user has no such directory of the usual name).
    [[nodiscard]] static Result<Neighbours> open();

    [[nodiscard]] int directory() const noexcept { return directory_.get(); }
    /// Returns the identities of all processes but this one; some may have ended. Errors: io_failed.
    [[nodiscard]] Result<std::vector<ProcessIdentity>> list() const;
    /// A connected, non-blocking socket, whose peer is of this user. Errors: no_agent (nobody listens there),
    /// timed_out (it does not accept connections), io_failed.
    [[nodiscard]] Result<UniqueFd> connect(const ProcessIdentity& process) const;

private:
    Neighbours(UniqueFd directory, std::string path) noexcept
        : directory_(std::move(directory)), path_(std::move(path)) {}

    UniqueFd directory_;
    std::string path_;
};

/// Withdraws questions; this class itself never does. Not thread-safe.
class Interruptions {
public:
    Interruptions() = default;
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

/// The terms of a sleep or wake of several processes as one.
struct Joint {
    bool is_sleep = true;
    Clock::time_point end = Clock::time_point::max(); ///< when all must be ready
    /// Asked when all are ready, before any passes the point of no return. Errors: why all are to go back.
    std::function<Result<void>()> consent = [] { return Result<void>(); };
};

/// An interruption comes too late for it.
struct PastReturn {};

/// An event of a question: progress that its agent reports, or, once, the answer.
struct Event {
    std::size_t question; ///< its index
    std::variant<model::Progress, PastReturn, Answer> what;
};

/// Questions that are asked at once. The first interruption withdraws all: an agent undoes what it did. Those
/// past the point of no return are waited for, until a second interruption. Not thread-safe.
///
/// An Error in place of an answer: invalid_argument, protocol_mismatch, connection_lost, timed_out,
/// cancelled: the agent has not passed the point of no return, and will not. outcome_unknown: it has, and did
/// not report the result.
class Conversations {
public:
    /// `interruptions` and `joint` outlive it, where they are not null. By `joint` all pass the point of no
    /// return when all are ready; see Together. There is one question at least then, and the requests are
    /// joint. If one cannot, all are withdrawn, as by an interruption: the answers of the others are
    /// `cancelled` then. Those that have been told to pass that point are waited for.
    explicit Conversations(std::vector<Question> questions, Interruptions* interruptions = nullptr,
                           const Joint* joint = nullptr);

    /// Waits for the next event, at most until `until`. Empty on timeout, or once all are answered.
    [[nodiscard]] std::optional<Event> next(Clock::time_point until = Clock::time_point::max());
    /// Whether all are answered.
    [[nodiscard]] bool are_over() const;
    /// Asks these, too, where there is no `joint`; their indices follow.
    void add(std::vector<Question> questions);
    /// Withdraws what is not answered. `why` stands for its being withdrawn in the answers.
    void withdraw(const std::optional<Error>& why = {});

private:
    struct Followed {
        Conversation conversation;
        bool has_told_end = false;
        bool has_told_past_return = false;
    };

    void step(Clock::time_point until);
    void begin_deep_steps();
    [[nodiscard]] bool is_early(std::size_t step) const;
    void coordinate();
    void note_end(std::size_t member);
    void go_back(Together::Why why);
    void interrupt();
    void tell();

    Interruptions* interruptions_;
    const Joint* joint_;
    std::optional<Together> together_; ///< where they go together
    std::vector<Followed> all_;
    std::deque<Event> events_;  ///< that are to be told
    bool is_withdrawn_ = false; ///< all that can be
    bool is_interrupted_ = false;
};

/// Asks as Conversations, and waits until each is answered or has timed out; the answers are in the same
/// order.
[[nodiscard]] std::vector<Answer> ask_all(std::vector<Question> questions,
                                          Interruptions* interruptions = nullptr,
                                          const Joint* joint = nullptr);

} // namespace gpu_sleep::client
