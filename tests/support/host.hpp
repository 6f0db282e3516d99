// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The host program as a test holds it, and the commands given for it.

#pragma once

#include "support/catch.hpp"
#include "support/process.hpp"
#include "support/sanitized.hpp"

namespace gpu_sleep::test {

using Arguments = std::vector<std::string>;

/// `some`, and `more` behind them.
[[nodiscard]] Arguments with(Arguments some, const Arguments& more);

/// A running process, and the commands given for it.
class Controlled {
public:
    explicit Controlled(const Launch& launch) : process_(launch) {}

    [[nodiscard]] pid_t pid() const noexcept { return process_.pid(); }
    [[nodiscard]] Process& process() noexcept { return process_; }

    /// Runs `command`, such as "gpu-sleep", for this process.
    [[nodiscard]] Output command(const std::string& name, Arguments arguments = {}) const;
    /// Starts it and does not wait.
    [[nodiscard]] Process start(const std::string& name, Arguments arguments = {}) const;
    /// gpu-sleep and gpu-wake, which must do; anything else fails the test.
    void sleep(Arguments arguments = {}) const;
    void wake(Arguments arguments = {}) const;
    /// Both, one after the other.
    void cycle() const;

    /// "awake", "asleep", "partial" or "damaged", as gpu-ps says.
    [[nodiscard]] std::string state() const;
    /// What gpu-ps reports of it under those names, such as "gate/on_touch"; as Output::json().
    [[nodiscard]] std::string report(const std::string& names) const;
    /// Waits until work of one thread waits at the gate.
    [[nodiscard]] bool waits_at_the_gate() const;
    [[nodiscard]] bool moves_contents() const;

protected:
    Process process_;
};

/// A running host program. At its end it must end by itself, without a complaint of a sanitizer, unless the
/// test ended it. host_program.cpp has what it may be asked.
class Host : NotCopied, public Controlled {
public:
    explicit Host(Arguments environment = {}, Arguments prefix = {});
    /// A host started in any other way.
    explicit Host(const Launch& launch);
    ~Host();

    /// The whole answer to `line`, "ok ..." or "error ...".
    [[nodiscard]] std::string ask(const std::string& line);
    /// The answer without its "ok "; an error fails the test.
    std::string tell(const std::string& line);
    /// Every byte is there, and no work touched memory that was not.
    void check_whole();
    /// The same, awake as it is and after a sleep and a wake.
    void check_unharmed();
    /// Wakes it, and every byte is there.
    void wake_whole();
    /// Waits for its end, which the test has brought about. Returns the status as in Output.
    int wait();
    /// By SIGKILL, and waits for its end.
    void kill();

protected:
    /// In a destructor: whether it is there still, and the test goes on.
    [[nodiscard]] bool can_be_asked() const noexcept;

private:
    bool is_over_ = false;
};

/// What starts a host program; `prefix` is a command that takes it as its arguments.
[[nodiscard]] Launch host_launch(Arguments environment, Arguments prefix = {});

/// One with 4 MiB of the tag `weights` on device 0.
class LoadedHost : public Host {
public:
    explicit LoadedHost(Arguments environment = {}, Arguments prefix = {})
        : LoadedHost(host_launch(std::move(environment), std::move(prefix))) {}
    explicit LoadedHost(const Launch& launch) : Host(launch) { tell("alloc weights 4194304 0"); }
};

/// It ended with this status, and its standard error is as it should be.
template <class Matcher>
void check_ended(const Output& output, int status, const Matcher& is_right) {
    INFO(output.out << output.err);
    CHECK(output.status == status);
    CHECK_THAT(output.err, is_right);
}

/// `output`, which must have ended with this status.
[[nodiscard]] Output ended(Output output, int status = 0);
/// Whether it ended with 0; else a failed check says what it wrote.
[[nodiscard]] bool succeeded(const Output& output);

/// The environment of a program all of whose calls the agent sees.
[[nodiscard]] Arguments captured(Arguments more = {});

/// Waits until `host` has been idle for so long.
void become_idle(const Host& host, double seconds = 0.05);

/// Waits until `command` opens a connection, and gives its request a moment to arrive: how long a command
/// takes to begin differs by machine.
void await_request(const Process& command);

/// Waits until `command` has opened a file, or a socket, in whose name `part` is.
void await_open(const Process& command, std::string_view part);

/// The environment of somebody else's program that runs with the agent: a sanitized agent brings its runtime
/// along, which does not like to come late, and finds leaks in others' programs.
[[nodiscard]] Arguments environment_for_others(Arguments variables = {});

/// gpu-run with `arguments`: its options, and the command.
[[nodiscard]] Launch gpu_run(Arguments arguments, Arguments environment = {});

/// The file of the socket of `process`, in the agent directory of this user.
[[nodiscard]] std::string socket_file(pid_t process);

} // namespace gpu_sleep::test
