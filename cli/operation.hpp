// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The common part of gpu-sleep, gpu-wake and gpu-reclaim: find the processes, send the requests, print the
// results.

#pragma once

#include "cli/gpu_moves.hpp"
#include "cli/options.hpp"
#include "cli/targets.hpp"

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
[[nodiscard]] Engine engine_of(std::string_view word) noexcept;

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
    std::vector<GpuMove> moves{};  ///< of a wake of what the driver has put away: to other GPUs
    bool accepts_losses = false;   ///< a sleep drops what is not declared refillable without a word before
    Selection selection = {};      ///< more than a target names, or a group in its place
    bool takes_several = false;    ///< a program's name is that of all that run it
};

/// Runs the command. Prints each result on standard output as it arrives, or all together as JSON, and
/// progress and errors on standard error. Returns the exit status, unless a signal that has withdrawn the
/// requests ends the command.
[[nodiscard]] int run(CommandRun operation);

/// Asks the processes whose connection was lost, or that did not answer in time, for their state, all at
/// once: they may have ended or may have no agent any more. Does not ask those that are stopped or whose
/// outcome is unknown, which cannot answer.
void ask_again(Finder& finder, std::vector<Outcome>& outcomes);

} // namespace gpu_sleep::cli
