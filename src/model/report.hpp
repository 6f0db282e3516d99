// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process's answer to a request: its state, what was done and how long the steps took, or why it failed.

#pragma once

#include "base/units.hpp"
#include "model/terms.hpp"

#include <atomic>
#include <vector>

namespace gpu_sleep::model {

struct WakeRequest;

/// One tag on one device. Sizes in bytes of GPU address space.
struct TagReport {
    std::string tag;
    int device = 0;
    TagPolicy policy;
    State state = State::awake;
    std::uint64_t ranges = 0;  ///< backings
    Bytes bytes = 0;           ///< all of them
    Bytes resident = 0;        ///< of those, in GPU memory
    Bytes kept = 0;            ///< contents held in host memory or in files
    Bytes in_files = 0;        ///< of those, in files
    Bytes dropped = 0;         ///< asleep without contents
    Bytes damaged = 0;         ///< asleep with contents that differ from their seal, or whose file is
    bool needs_refill = false; ///< awake, but dropped in an earlier sleep and not yet reported refilled
    Bytes allocated = 0;       ///< the size that the program requested
    Bytes host_backed = 0;     ///< awake, in host memory that the GPU uses in place
    Bytes in_place = 0;        ///< of host_backed and kept, what sleeps in its own memory, or would
};

/// A kind of work that a sleep or a wake consists of.
enum class Step : std::uint8_t {
    populate = 0,    ///< giving pages to host memory; where contents are relayed, writing them there, too
    pin = 1,         ///< making them page-locked
    await_host = 2,  ///< a copy's wait for host memory that is being populated and pinned
    fingerprint = 3, ///< taking or comparing fingerprints
    copy = 4,        ///< copies across the link, and setting to zero; what the moving thread waits for them
    create = 5,      ///< GPU memory
    map = 6,
    access = 7, ///< allowing devices to use what is mapped
    unmap = 8,
    release = 9, ///< GPU memory
};
[[nodiscard]] constexpr std::string_view to_string(Step step) noexcept {
    return word_of(step, {"populate", "pin", "await_host", "fingerprint", "copy", "create", "map", "access",
                          "unmap", "release"});
}

/// All steps there are, in the order of their numbers.
inline constexpr std::array k_steps{Step::populate, Step::pin,    Step::await_host, Step::fingerprint,
                                    Step::copy,     Step::create, Step::map,        Step::access,
                                    Step::unmap,    Step::release};

/// Seconds for each of k_steps. Steps run side by side, and several threads at one step: the sum of all may
/// be more than the operation takes.
using StepTimes = std::array<double, k_steps.size()>;

struct DeviceReport {
    int device = 0;
    std::string name;
    Bytes released = 0;    ///< GPU memory that this operation gave back (sleep) or took (wake)
    Bytes kept = 0;        ///< contents this operation moved to, or brought back from, their store
    Bytes dropped = 0;     ///< contents this operation dropped, or ranges it set to zero
    Bytes free_before = 0; ///< free GPU memory as the driver reported it; 0 when it was not asked
    Bytes free_after = 0;  ///< likewise; in a dry run, what it would be
    Bytes total = 0;
    Bytes stored = 0;    ///< of those kept by a sleep, what takes room: all but blocks of zeros
    Bytes copied = 0;    ///< of those stored, what had changed since the last sleep, and was copied
    StepTimes steps{};   ///< where the time of this operation went
    Bytes relocated = 0; ///< contents of what slept already that a sleep moved to another store
    /// "GPU-..." or "MIG-...", as nvidia-smi has it; empty if the driver does not say.
    std::string uuid{};
};

/// The kind of residual memory that is no GPU memory: what runs from host memory, and has to stay there.
inline constexpr const char* k_residual_of_host = "host";

/// Memory that always stays on the GPU: all of one kind on one device.
struct Residual {
    std::string kind; ///< such as managed, imported, exported, graph, multiple_mappings, array, pool or ipc
    int device = 0;
    Bytes bytes = 0;
    std::uint64_t count = 0; ///< allocations
    std::string reason;      ///< for a person: why it stays
};

/// A wake that found too little GPU memory, and is tried again until there is enough or its time limit is
/// over.
struct WaitingWake {
    std::vector<std::string> tags; ///< as it was asked for; empty means every tag
    bool by_touch = false;         ///< requested by work that the gate holds, not by a command
    double seconds = 0;            ///< since it was tried first
    std::string reason;            ///< for a person: what was missing in the last try
    std::uint32_t place = 0;       ///< in the line of those that make room, from 1; 0: it is not in that line
};

/// A change of where memory is: it lets GPU memory go, takes it back, or moves kept contents.
enum class Transition : std::uint8_t {
    sleep = 0,
    wake = 1,
    move = 2, ///< what slept already went to another store, and nothing else fell asleep
};
[[nodiscard]] constexpr std::string_view to_string(Transition transition) noexcept {
    return word_of(transition, {"sleep", "wake", "move"});
}

/// All transitions there are, in the order of their numbers.
inline constexpr std::array k_transitions{Transition::sleep, Transition::wake, Transition::move};

/// Bounds in seconds of the classes in which transitions are counted by how long they took.
inline constexpr std::array k_duration_bounds{0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                              1.0,  2.5,   5.0,  10., 30.,  60.};

/// For each of k_duration_bounds how many took as long at most, and longer than the bound before; at last
/// those that took longer than all bounds.
using DurationCounts = std::array<std::uint64_t, k_duration_bounds.size() + 1>;

struct FailureCount {
    ErrorCode code = ErrorCode::internal;
    std::uint64_t count = 0;
};

/// The transitions of one kind since the agent started. Each is counted when it ends, and its time runs from
/// the request to the answer, waits for its turn and for GPU memory among it. What changes nothing is none.
struct TransitionCounts {
    Transition transition = Transition::sleep;
    DurationCounts done{};            ///< those that succeeded
    double done_seconds = 0;          ///< of all those together
    std::vector<FailureCount> failed; ///< each error once
};

enum class Operation : std::uint8_t { status = 0, sleep = 1, wake = 2 };
[[nodiscard]] constexpr std::string_view to_string(Operation operation) noexcept {
    return word_of(operation, {"status", "sleep", "wake"});
}

/// Seconds spent in each phase of an operation; phases overlap only where noted.
struct PhaseTimes {
    double callbacks = 0;
    double drain = 0;
    double transfer = 0; ///< preparing host memory, fingerprints and copying (or copying and verifying)
    double release = 0;  ///< unmapping and releasing (or creating and mapping)
    double total = 0;
};

/// Features of this agent that not every agent has. The names never change.
inline constexpr std::array<std::string_view, 3> k_features{"pause", "deep", "joint"};

/// The process of a report.
struct Identity {
    std::int32_t pid = 0; ///< in the process's own namespace
    std::string name;     ///< given by the program or its environment; may be empty
    std::string group;    ///< of processes that belong together, given by the environment; may be empty
    std::string version;  ///< of the agent
    std::vector<std::string> features; ///< of k_features, or of those of its own version
    bool intercepts = false;           ///< the program's own allocations are intercepted
};

/// The results of an operation, or of its rehearsal.
struct Deed {
    Operation operation = Operation::status;
    Level level = Level::keep; ///< of a sleep
    bool dry_run = false;      ///< nothing was changed; the numbers are those of a real run
    bool changed = false;      ///< false when the process was already as asked
    PhaseTimes times;
    double longest_pause = 0; ///< seconds for which work was held back at most, of what moved while it ran
    std::vector<std::string> dropped_without_refill; ///< tags dropped by this sleep with no declared refill
    std::vector<std::string> notes; ///< sentences for a person, such as what could not be done
    std::string refusal; ///< of the notes, why it was not done, or would fail; empty: nothing known
    std::optional<ErrorCode> refusal_code; ///< with which it would fail; unset where it would not
};

/// How the process stands afterwards, and since when.
struct Standing {
    State state = State::awake; ///< of the whole process
    double state_seconds = 0;   ///< how long the process has been in its state; 0 right after a change
    /// How long the program has given the GPU no work, and the GPU has had none of it to do; counted in steps
    /// of some seconds, and 0 while it works. Unset where that cannot be known.
    std::optional<double> idle_seconds;
    bool inhibited = false;                   ///< sleeps that are asked for from outside are refused
    std::optional<double> inhibited_seconds;  ///< for how much longer; unset where there is no limit
    std::optional<double> seconds_since_wake; ///< since memory came back last; unset if it never slept
    Bytes woken_bytes = 0;    ///< contents that the last wake copied, of those that mapped none in place
    double woken_seconds = 0; ///< how long that took, until work could go on
    std::vector<TransitionCounts> transitions; ///< each kind that has happened; only in a status
    std::uint64_t asleep_byte_seconds = 0;     ///< of GPU memory since the start; only in a status
    std::vector<std::string> steps; ///< the last ones, as log::recent_steps() has them; only in a status
};

/// Where contents are kept afterwards.
struct Holdings {
    Bytes host_bytes = 0;     ///< host memory that the agent holds for contents
    Bytes file_bytes = 0;     ///< what its files take on disk
    Bytes retained_bytes = 0; ///< host memory that holds contents of what is awake, for the next sleep
    std::vector<std::string> directories; ///< of its files of contents, as it sees them
    Bytes unreleased_bytes = 0;           ///< of what sleeps, memory that the driver did not release
    std::string reply;                    ///< of a callback by name; may be empty
    std::vector<std::uint64_t> sharers;   ///< pids of those with whom it shares memory; only in a status
};

/// How work is met.
struct Touches {
    GateState gate = GateState::open;
    OnTouch on_touch = OnTouch::wait; ///< what a touch does; of this sleep, or the default of the process
    std::uint64_t waiting = 0;        ///< threads that the gate holds now
    std::uint64_t touches = 0;        ///< touches that it has held since the process started
    std::string last_touch; ///< the entry point that was held last, such as cuLaunchKernel; may be empty
    std::vector<WaitingWake> wakes_waiting; ///< for GPU memory; only in a status
};

/// The part of a deep sleep that the driver has done.
struct Deepness {
    /// Asleep, and the driver has taken the rest as well, its context among it: nothing of it is on a GPU.
    bool deep = false;
    Bytes deep_bytes = 0;     ///< GPU memory that this has freed, as the driver's management library saw it
    std::string deep_refusal; ///< for a person: why a deep sleep of it would be refused; empty: nothing known
    /// A checkpoint or restore has failed partway, and no wake is possible: a note says so.
    bool lost = false;
    std::vector<std::string> lock_tags; ///< that a sleep has put to sleep for a lock, and may wake after it
};

/// The answer to a request that succeeded: what was done, and the state of the process afterwards.
struct Report : Identity, Deed, Standing, Holdings, Touches, Deepness {
    std::vector<TagReport> tags;       ///< every tag of the process, afterwards
    std::vector<DeviceReport> devices; ///< every device it holds ranges on
    std::vector<Residual> residual;
};

/// The progress of an operation. Sent often; losing one is harmless.
struct Progress {
    enum class Phase : std::uint8_t {
        callbacks = 0,
        drain = 1,
        transfer = 2,
        release = 3,
        verify = 4,
        waiting = 5,
        deep = 6,    ///< it sleeps, and keeps from the driver: who asked may lock and checkpoint it, and then
                     ///< shuts its side of the connection
        drained = 7, ///< of a joint sleep: it waits for a Directive
        ready = 8    ///< of a joint request: the same
    };
    Phase phase = Phase::callbacks;
    Bytes done = 0;
    Bytes total = 0;
    std::uint64_t held = 0; ///< threads that the gate holds and could let through; in phase drained
    /// A call of the system or the driver has begun that may take minutes; until a word without it.
    bool in_call = false;
};
[[nodiscard]] constexpr std::string_view to_string(Progress::Phase phase) noexcept {
    return word_of(phase, {"callbacks", "drain", "transfer", "release", "verify", "waiting", "deep",
                           "drained", "ready"});
}

/// A failed request: why, and the state of the process, or of the requested part, afterwards.
struct Failure {
    Error error;
    State state = State::awake;
};

/// Has `report` say why what was asked is not done, or would fail with `code`. The first reason stays its
/// refusal.
void refuse(Report& report, std::string why, std::optional<ErrorCode> code = {});

/// Why a process that has been `so` for `seconds` sleeps only once it has been for `wanted`.
[[nodiscard]] std::string not_yet(std::string_view so, double seconds, double wanted);

/// Has the report of a rehearsed wake say which GPUs have too little room, for which it would fail, unless
/// the request has it wait or make room.
void note_short_devices(const WakeRequest& request, Report& report);

/// Returns the sum of a figure of all items, such as TagReport::in_files of a report's tags.
template <class T>
[[nodiscard]] Bytes sum_of(const std::vector<T>& items, Bytes T::*figure) noexcept {
    Bytes sum = 0;
    for (const auto& item : items) sum += item.*figure;
    return sum;
}
/// The part of the kept contents of `tag` that is in `store`.
[[nodiscard]] Bytes kept_in(const TagReport& tag, Store store) noexcept;
/// All that succeeded.
[[nodiscard]] std::uint64_t done_of(const TransitionCounts& counts) noexcept;
/// The place for what the agent holds in `store`.
[[nodiscard]] Bytes& held_in(Holdings& holdings, Store store) noexcept;

/// The exit status of a command after `failure`; see exit_status.
[[nodiscard]] int exit_status_of(const Failure& failure, Operation asked = Operation::sleep) noexcept;

/// The time that threads have spent at each step, of all threads together. A stamp takes 25 ns. Thread-safe.
class StepClock {
public:
    /// Adds the time from its making to its end. Several may count at once.
    class Timed {
    public:
        /// `clock` may be null: nothing is counted. It outlives this.
        Timed(StepClock* clock, Step step) noexcept : clock_(clock), step_(step) {}
        Timed(const Timed&) = delete;
        Timed& operator=(const Timed&) = delete;
        ~Timed() {
            if (clock_) clock_->add(step_, Clock::now() - start_);
        }

    private:
        StepClock* clock_;
        Step step_;
        Clock::time_point start_ = Clock::now();
    };

    void add(Step step, Clock::duration time) noexcept {
        spent_[static_cast<std::size_t>(step)].fetch_add(time.count(), std::memory_order_relaxed);
    }
    /// In seconds.
    [[nodiscard]] StepTimes times() const noexcept {
        StepTimes times{};
        for (std::size_t i = 0; i < times.size(); ++i)
            times[i] =
                std::chrono::duration<double>(Clock::duration(spent_[i].load(std::memory_order_relaxed)))
                    .count();
        return times;
    }

private:
    std::array<std::atomic<Clock::rep>, k_steps.size()> spent_{};
};

} // namespace gpu_sleep::model
