// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Real processes: started with pipes and an environment, talked to line by line, waited for with a limit.
// Needs no test framework, so benchmarks use it too.

#pragma once

#include "base/fd.hpp"
#include "base/units.hpp"

#include <sys/types.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace gpu_sleep::test {

/// Ends every wait that names no other limit; generous, since sanitizers are slow. What ought to be fast is
/// timed where it is tested.
inline constexpr Milliseconds k_patience{60'000};

/// The part of the time that one of all threads that want to run can have, where `loadavg` is the content of
/// /proc/loadavg; 1 if it cannot be read. Source: proc_loadavg(5).
[[nodiscard]] double share_of_processors(std::string_view loadavg, unsigned processors);

/// The end of a wait. It counts the time that a process could have run, not the wall clock: while more want
/// to run than there are processors, only a share. Not thread-safe.
class Patience {
public:
    explicit Patience(Milliseconds time) noexcept : left_(time) {}
    /// What is left, at least 0. To be asked again and again, for the machine is looked at then.
    [[nodiscard]] Milliseconds left();

private:
    std::chrono::duration<double> left_;
    Clock::time_point seen_ = Clock::now();
};

/// What a process did not do, and its standard error so far. Catch2 reports it as a failure of the test.
class ProcessFailure : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// What to start. `command` is looked up in PATH unless it names a file.
struct Launch {
    std::vector<std::string> command;
    std::vector<std::string> environment = {}; ///< "NAME=VALUE", besides what is inherited
    bool inherits_environment = true;
    Milliseconds patience = k_patience; ///< for each of its lines, and for its end
};

/// What a command left behind.
struct Output {
    int status = 0; ///< exit status, or 128 and the number of the signal that ended it
    std::string out;
    std::string err;
    double seconds = 0; ///< from before it was started until its end was known

    /// The values in the JSON of `out` at the `pointers`, such as "/processes/0/state", all below `prefix`,
    /// with a blank between two of them; texts without quotes, and "none" where there is no such value.
    /// Throws ProcessFailure when `out` is no JSON, or names another exit status than the command ended with
    /// by itself. Source: RFC 6901.
    [[nodiscard]] std::string json(const std::string& pointers, const std::string& prefix = {}) const;
    /// The value at `pointer` in each of the processes; as json().
    [[nodiscard]] std::vector<std::string> of_all(const std::string& pointer) const;
    /// The value of `field` in the report of `tag` of the first process; as json().
    [[nodiscard]] std::string tag(std::string_view tag, const std::string& field) const;
};

/// A child process; killed at the end if it still runs. Standard output is a pipe, standard error is kept.
/// Not thread-safe. Throws ProcessFailure where it cannot do what it says in its time.
class Process {
public:
    explicit Process(const Launch& launch);
    Process(Process&&) noexcept = default;
    Process& operator=(Process&&) = delete;
    ~Process();

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }

    void send(const std::string& line) const;
    /// The next line of its standard output.
    [[nodiscard]] std::string read_line();
    [[nodiscard]] bool has_output_within(Milliseconds limit) const;
    void close_input() { input_.reset(); }
    /// After SIGSTOP it has stopped.
    void signal(int number) const;

    /// Waits for its end. Returns the status as in Output.
    int wait();
    /// The same, or nothing when it still runs after `limit`; never throws.
    [[nodiscard]] std::optional<int> wait_for(Milliseconds limit);
    /// Reads to the end of its standard output and waits for its end.
    [[nodiscard]] Output finish();
    /// What it has written to standard error so far.
    [[nodiscard]] std::string errors() const;

private:
    /// Adds what comes to unread_; false at the end of the output.
    [[nodiscard]] bool read_more(Patience& patience);
    [[noreturn]] void fail(const std::string& what) const;

    /// The pid, which is a move-only value.
    class Owned {
    public:
        Owned() = default;
        Owned(Owned&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
        Owned& operator=(pid_t pid) noexcept {
            pid_ = pid;
            return *this;
        }
        operator pid_t() const noexcept { return pid_; }
        pid_t* address() noexcept { return &pid_; }

    private:
        pid_t pid_ = 0; ///< 0 once nothing runs any more
    };

    std::string name_; ///< what was started
    Clock::time_point start_ = Clock::now();
    Milliseconds patience_;
    Owned pid_;
    UniqueFd input_;
    UniqueFd output_;
    UniqueFd errors_; ///< an unnamed file
    std::string unread_;
};

/// Starts `launch` and waits for its end.
[[nodiscard]] Output run(const Launch& launch);

/// The file of a program of this build, such as "gpu-sleep": it lies beside the running program. A sanitized
/// program takes several times as long to build and to start, so those of two builds can be mixed: commands
/// are taken from the directory GPU_SLEEP_TEST_COMMANDS, what they are given for from the build
/// GPU_SLEEP_SANITIZED_BUILD, where these are set.
[[nodiscard]] std::string command_file(std::string_view name);

/// A command of the shell that mounts an empty /tmp. If the builds lie below /tmp, they are found there as
/// before.
[[nodiscard]] std::string mount_empty_tmp();

/// Waits until `is_so` is true, within the limit (Patience). Returns what it was last. Rests for longer than
/// looking takes, for commands that look take the processors from what is waited for.
template <class Condition>
[[nodiscard]] bool becomes_true(Condition&& is_so, Milliseconds limit = k_patience);

void pause_for(Milliseconds time);

template <class Condition>
bool becomes_true(Condition&& is_so, Milliseconds limit) {
    constexpr std::chrono::microseconds k_max_rest{10'000};
    constexpr Clock::duration k_max_rest_from_looking = Milliseconds(200);
    Patience patience(limit);
    std::chrono::microseconds rest{100};
    for (auto begun = Clock::now(); !is_so(); begun = Clock::now()) {
        const auto end = Clock::now();
        if (patience.left() == Milliseconds(0)) return false;
        std::this_thread::sleep_for(
            std::max<Clock::duration>(rest, std::min(4 * (end - begun), k_max_rest_from_looking)));
        rest = std::min(2 * rest, k_max_rest);
    }
    return true;
}

} // namespace gpu_sleep::test
