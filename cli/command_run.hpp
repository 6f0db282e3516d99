// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a command that changes processes was asked to do.

#pragma once

#include "cli/options.hpp"
#include "control/gpu_moves.hpp"
#include "control/targets.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// What puts a process to sleep.
enum class Engine : std::uint8_t {
    agent,
    driver,    ///< its checkpoint of a process that has no agent
    automatic, ///< the agent, or the driver if there is none
};

/// The engine of a word of "agent|driver|auto".
[[nodiscard]] inline Engine engine_of(std::string_view word) noexcept {
    return word == "auto" ? Engine::automatic : word == "driver" ? Engine::driver : Engine::agent;
}

/// One run of a command that changes processes.
struct CommandRun {
    std::string program;
    /// Pids and names. None, where no group is selected: all processes with an agent that may be asked.
    /// Nothing is said then of one that has gone, or that has nothing to do with the request, and it is no
    /// failure.
    std::vector<std::string> targets;
    std::optional<uid_t> user; ///< select only processes of this user
    protocol::Request request;
    OutputOptions output;
    Engine engine = Engine::agent; ///< of a sleep; a wake asks whom it has to
    bool force = false;            ///< the driver restores also where it is not known whether there is room
    std::vector<control::GpuMove> moves{}; ///< of a wake of what the driver has put away: to other GPUs
    bool accepts_losses = false; ///< a sleep drops what is not declared refillable without a word before
    Selection selection = {};    ///< more than a target names, or a group in its place
    bool takes_several = false;  ///< a program's name is that of all that run it
};

/// Whether the command puts processes to sleep.
[[nodiscard]] inline bool is_sleep(const CommandRun& operation) noexcept {
    return std::holds_alternative<model::SleepRequest>(operation.request);
}

/// Whether the processes go together, as one operation: not so where it only looks, or gives back.
[[nodiscard]] inline bool is_joint(const CommandRun& operation) noexcept {
    if (const auto* sleep = std::get_if<model::SleepRequest>(&operation.request)) return sleep->joint;
    return std::get<model::WakeRequest>(operation.request).joint;
}

} // namespace gpu_sleep::cli
