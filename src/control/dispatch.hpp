// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep or a wake of whoever is selected, by their agents or by the driver, as a command asks for it.
// Nothing is printed here: see Listener.

#pragma once

#include "control/command.hpp"

namespace gpu_sleep::control {

/// Contents that a sleep would drop, and that the program has not declared refillable.
struct Loss {
    Process process;
    Bytes bytes = 0;
    std::vector<std::string> tags;
};

/// A command for the processes that it has found. Not thread-safe.
class Dispatch {
public:
    /// Finds them. Errors: those of find_each() and the like; invalid_argument, no_driver, driver_failed
    /// (moves that cannot be); what the process to be moved answers.
    [[nodiscard]] static Result<Dispatch> select(Command command, Finder finder = Finder());

    [[nodiscard]] const Command& command() const noexcept { return command_; }
    /// How they stand now, and those that cannot be asked.
    [[nodiscard]] std::vector<Outcome> ask_status(Milliseconds patience);
    /// Has `request` carried out in place of the command's.
    void ask_for(protocol::Request request) { command_.request = std::move(request); }

    /// Rehearses a sleep that may drop contents, and returns what it would lose. Skips who does not answer.
    [[nodiscard]] std::vector<Loss> losses();

    /// Carries it out, once. Of processes that go together nobody is asked if one cannot be. The outcomes are
    /// those that the listener has heard. Errors: unknown_tag (none of all processes has the tags).
    [[nodiscard]] Result<std::vector<Outcome>> carry_out(Listener& listener, Interruptions& interruptions);

private:
    Dispatch(Command command, Finder finder) : command_(std::move(command)), finder_(std::move(finder)) {}

    [[nodiscard]] Result<void> find();
    [[nodiscard]] Result<void> find(const std::string& word);
    void find_recorded();
    [[nodiscard]] Result<Process> choose_driver(const std::string& word, const Result<Targets>& found);
    [[nodiscard]] Result<void> plan_moves();
    /// Asks all that were reached what changes nothing; whoever asks again connects again.
    [[nodiscard]] std::vector<Outcome> ask(const protocol::Request& question, Milliseconds patience);
    /// Returns the outcomes of the processes that cannot be asked.
    [[nodiscard]] std::vector<Outcome> take_unreached();
    [[nodiscard]] std::vector<Outcome> ask_agents(Listener& listener, Interruptions& interruptions);
    [[nodiscard]] std::vector<Outcome> ask_together(Listener& listener, Interruptions& interruptions);
    [[nodiscard]] Result<void> check_members(const std::vector<Process>& members) const;
    void ask_driver(Listener& listener, Interruptions& interruptions, std::vector<Outcome>& outcomes);

    Command command_;
    Finder finder_;
    Targets targets_;
    std::vector<Process> without_agent_; ///< whom the driver is asked about
};

} // namespace gpu_sleep::control
