// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A request and its targets as a person names them, and the listener that hears of its progress.

#pragma once

#include "control/ask.hpp"
#include "control/gpus.hpp"

namespace gpu_sleep::control {

using client::Interruptions;

/// Which processes a command is for.
struct Selection {
    /// Pids and names. None, where no group is named: all processes with an agent that may be asked. Nothing
    /// is said then of one that is_passed_over().
    std::vector<std::string> words{};
    bool tree = false;           ///< the word and its descendants
    std::string group{};         ///< in place of words; may be empty
    bool takes_several = false;  ///< a program's name is that of all that run it
    std::optional<uid_t> user{}; ///< only processes of this user

    /// Whether they go together.
    [[nodiscard]] bool is_joint() const noexcept { return tree || !group.empty(); }
    /// Whether nobody in particular is named.
    [[nodiscard]] bool is_for_all() const noexcept { return words.empty() && group.empty(); }
};

/// The part that puts a process to sleep.
enum class Engine : std::uint8_t {
    agent,
    driver,    ///< its checkpoint of a process that has no agent
    automatic, ///< the agent, or the driver if there is none
};

struct Command {
    Selection whom{};
    protocol::Request request{};   ///< an operation; `joint` where the processes go together
    Engine engine = Engine::agent; ///< of a sleep; a wake asks whom it has to
    bool force = false;            ///< the driver restores also where it is not known whether there is room
    std::vector<GpuPair> moves{};  ///< as typed; of a wake of what the driver has put away: to other GPUs
};

/// For how long a command waits for GPU memory without a word.
inline constexpr Milliseconds k_silence{3'000};

/// Hears of the processes that are asked, on the thread that asks. This one takes no notice.
class Listener {
public:
    Listener() = default;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    virtual ~Listener() = default;

    virtual void progress(const Process& /*process*/, const model::Progress& /*progress*/) {}
    /// It has waited for GPU memory for k_silence: once, why, and until when it waits at most.
    virtual void waits(const Process& /*process*/, const std::string& /*why*/, Clock::time_point /*until*/) {}
    /// An interruption comes too late for the process.
    virtual void past_return(const Process& /*process*/) {}
    /// Once for each process.
    virtual void ended(const Outcome& /*outcome*/) {}
};

} // namespace gpu_sleep::control
