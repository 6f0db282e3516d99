// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which operation is next: those in line, in the order in which they were asked for, and wakes that wait for
// GPU memory, past which all others go. It runs nothing and knows no threads.

#pragma once

#include "model/model.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <list>

namespace gpu_sleep::agent::server {

using Operation = std::variant<model::SleepRequest, model::IdleSleepRequest, model::ReleaseRequest,
                               model::LiveRequest, model::CallRequest, model::WakeRequest>;
using Outcome = std::variant<model::Report, model::Failure>;
/// Told how far an operation is; false means that the asker has gone, or cannot be told of the point of no
/// return (Progress::Phase::release).
using ProgressSink = std::function<bool(const model::Progress&)>;

/// Waits, for `patience` at most, for the next directive of a joint request. Empty: none came. Errors:
/// connection_lost (the asker has withdrawn, or has gone), protocol_mismatch, invalid_argument.
using DirectiveSource = std::function<Result<std::optional<model::Directive>>(Milliseconds patience)>;

/// The origin of an operation. All but a command are this process itself, and have no connection.
enum class Asker {
    command,
    program, ///< through the C API, or what acts for it
    touch,   ///< a call of the program that waits for what sleeps
    timer,   ///< of the agent: the process has been idle for long
};

/// How an operation is asked for, and who hears of it.
struct Asking {
    const ProgressSink& progress;
    const DirectiveSource& directives; ///< may be empty where the request is not joint
    Asker asker = Asker::command;
    Clock::time_point since = Clock::now();
    bool is_tried = false; ///< a wake that has been, and may wait for GPU memory
};

/// An operation that somebody has asked for.
struct Job {
    Operation operation;
    ProgressSink progress;
    std::function<void(Outcome)> answer;
    Asker asker = Asker::command; ///< a wake that no command asks for stands in line as long as it takes
    /// Told each time that a wake has found too little GPU memory and waits; may be empty.
    std::function<void(const Error&)> on_shortage = {};
    Clock::time_point since = Clock::now();
    DirectiveSource directives = {}; ///< empty where no command asks
    uid_t asker_uid = ::geteuid();   ///< of a command, as the kernel says
};

/// Not thread-safe. Takes memory in add() and waiting() alone.
///
/// A wake that lacks GPU memory and may wait for it holds nothing meanwhile: it is tried again every 50 ms,
/// or less often where a try is dear, and as soon as another operation has ended. All that wait are tried in
/// rounds, in the order in which they came. Between two tries one of those in line has its turn, so that
/// neither kind keeps the other out.
class RequestQueue {
public:
    class Place;

    void add(Job job);
    /// The next that may run now, or null. It keeps its place, and is passed over, until it leaves or waits.
    [[nodiscard]] Place* next(Clock::time_point now) noexcept;
    /// When next() has something to give, unless something is added; max() for never.
    [[nodiscard]] Clock::time_point next_time() const noexcept;

    /// `place` was tried at `begun` and ended with `why`. Whether it waits now: if it is a wake that lacks
    /// GPU memory, with time left to wait for it; it is tried again after `pause`, or 50 ms. Otherwise `why`
    /// is untouched.
    [[nodiscard]] bool waits(Place& place, model::Failure& why, Clock::time_point begun,
                             Clock::time_point now, Milliseconds pause = {}) noexcept;
    /// Takes it out, for it is done.
    [[nodiscard]] Job leave(Place& place, Clock::time_point now) noexcept;

    /// One that has waited for as long as it may, and why it could not wake if it has been tried.
    /// `own_alone`: only those that no command asks for.
    struct Late {
        Job job;
        std::optional<model::Failure> why;
    };
    [[nodiscard]] std::optional<Late> take_late(Clock::time_point now, bool own_alone) noexcept;

    [[nodiscard]] bool is_empty() const noexcept { return places_.empty(); }
    /// The wakes that wait for GPU memory, one that is being tried among them.
    /// `place`: of this process, in the line of those that make room.
    [[nodiscard]] std::vector<model::WaitingWake> waiting(Clock::time_point now,
                                                          std::uint32_t place = 0) const;
    /// Whether a wake that makes room is among all these.
    [[nodiscard]] bool makes_room() const noexcept;

private:
    [[nodiscard]] Place* due(Clock::time_point now) noexcept;
    /// Returns the first waiting operation that this round has not tried.
    [[nodiscard]] Place* first_untried() noexcept;

    std::list<Place> places_; ///< as they were asked for
    bool has_tried_last_ = false;
    Clock::time_point next_round_{};
    bool has_ended_ = false; ///< an operation, since the round began
};

/// A job in the line. What the job is told may be used while it runs; the rest is the line's.
class RequestQueue::Place {
public:
    explicit Place(Job job) noexcept : job_(std::move(job)) {}

    [[nodiscard]] Job& job() noexcept { return job_; }
    /// Whether it has been tried, and waits for GPU memory.
    [[nodiscard]] bool has_waited() const noexcept { return shortage_.has_value(); }
    /// Returns what is left of the operation's own time limit.
    [[nodiscard]] Milliseconds time_left(Clock::time_point now) const noexcept;

private:
    friend class RequestQueue;
    struct Shortage {
        Clock::time_point since;
        Clock::time_point until;
        bool is_tried;      ///< in this round
        model::Failure why; ///< of the last try
    };

    Job job_;
    std::optional<Shortage> shortage_; ///< of a wake that waits for GPU memory
    bool runs_ = false;
};

} // namespace gpu_sleep::agent::server
