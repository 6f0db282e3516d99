// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Telling a person what a sleep or a wake has come to.

#pragma once

#include "cli/command_run.hpp"
#include "control/gpus.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// Whether the process is gone, or its agent is, by what it answered.
[[nodiscard]] bool is_gone(ErrorCode code) noexcept;
/// Whether one of all processes has gone, or has none of the tags: nobody has named it.
[[nodiscard]] bool is_passed_over(const CommandRun& operation, const control::Outcome& outcome) noexcept;

/// Tells what becomes of each process. Not thread-safe; the operation outlives it.
class Teller {
public:
    explicit Teller(const CommandRun& operation) noexcept : operation_(operation) {}

    /// Says what failed on standard error, and what was done on standard output.
    void tell(const control::Outcome& outcome);
    /// Says that there was nothing to do, unless something was told, and of several what they come to.
    void tell_end(const std::vector<control::Outcome>& outcomes);
    /// Says of processes that go together what has become of all.
    void tell_sum(const std::vector<control::Outcome>& outcomes);
    /// The status says how the processes are, so it stays what it is if nobody gets to read the result.
    void print(const std::string& text);
    /// Says that an interruption comes too late.
    void tell_past_return(const control::Process& process) const;

private:
    void tell_done(const control::Outcome& outcome);
    void print_error(const control::Outcome& outcome, const Error& error);

    const CommandRun& operation_;
    control::GpuNumbers numbers_;
    bool has_complained_ = false; ///< of standard output
    bool has_told_ = false;       ///< of a process
};

} // namespace gpu_sleep::cli
