// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process that is told to stop (SIGTSTP) sleeps first, and wakes when it is continued: `gpu-run --on-stop
// sleep`. The one place where the agent has a signal's disposition.

#pragma once

#include "base/error.hpp"
#include "base/units.hpp"
#include "model/model.hpp"
#include "server/server.hpp"

namespace gpu_sleep::agent::lifecycle {

/// The reaction to SIGTSTP, unless the program handles that itself.
enum class OnStop : bool { stop, sleep };

/// "stop" or "sleep".
[[nodiscard]] std::optional<OnStop> parse_on_stop(std::string_view word) noexcept;

/// One for each process. Never destroyed: its thread ends with the process. Thread-safe.
class StopWatch {
public:
    /// The functions of the agent that it calls on its own thread.
    struct Agent {
        std::function<server::Outcome(server::Operation, server::ProgressSink)> run;
        std::function<model::Report()> status;
        std::function<bool()> is_paused; ///< also where the state says that it is partly asleep
    };

    /// Takes SIGTSTP where its disposition is the default, and starts the thread that stops the process. A
    /// stop that comes is put off for `grace` at most. Once for each process. Errors: out_of_threads.
    [[nodiscard]] Result<void> start(Agent agent, Milliseconds grace);

    /// A sentence for a person: what becomes of SIGTSTP now. Empty before start().
    [[nodiscard]] std::string note() const;

    /// Gives the dispositions back that it has: a child of fork() stops as it would. Async-signal-safe.
    static void leave_in_child() noexcept;

private:
    [[noreturn]] void watch_for_ever();
    /// Sleeps if that fits the grace time, stops, and wakes what it has put to sleep.
    void stop_and_wake();
    /// Notes in slept_ what it puts to sleep.
    void sleep_in_time();
    /// Tries until it is awake or has to stop once more.
    void wake();

    Agent agent_;
    Milliseconds grace_{0};
    std::atomic<bool> is_started_{false};
    std::vector<std::string> slept_; ///< tags that it has put to sleep, and not woken; the thread's
    // For estimates of how long a sleep would take; used by the thread alone.
    double seconds_per_byte_ = 0;   ///< of its last sleep
    std::optional<Bytes> too_much_; ///< which did not sleep in time
};

} // namespace gpu_sleep::agent::lifecycle
