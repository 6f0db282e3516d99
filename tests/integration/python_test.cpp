// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs in Python: its lock, and PyTorch's cache.

#include "support/host.hpp"
#include "support/tree.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

using namespace gpu_sleep::test;

namespace {

struct HealthSocket {
    Scratch scratch;
    std::string path = scratch.file("health");
};

/// python_program.py under gpu-run.
class PythonProgram : HealthSocket, public Controlled {
public:
    explicit PythonProgram(Arguments options = {}, const char* device = "0")
        : Controlled(launch(std::move(options), device)) {
        REQUIRE(process_.read_line() == fmt::format("ready {}", process_.pid()));
    }

    std::string tell(const std::string& line) {
        process_.send(line);
        return process_.read_line();
    }

    /// Has it do so asleep, which the gate must hold.
    void begin_asleep(const std::string& line) {
        sleep();
        process_.send(line);
        REQUIRE(waits_at_the_gate());
    }
    /// Wakes it: what was held has this answer then.
    void wake_and_hear(const std::string& answer) {
        wake();
        CHECK(process_.read_line() == answer);
    }

    /// Whether it answers a health check within `limit`.
    [[nodiscard]] bool is_alive(Milliseconds limit) const {
        const UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        REQUIRE(path.size() < sizeof address.sun_path);
        std::memcpy(address.sun_path, path.c_str(), path.size());
        REQUIRE(::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
                0);
        pollfd readable{connection.get(), POLLIN, 0};
        return ::poll(&readable, 1, static_cast<int>(limit.count())) == 1;
    }

private:
    [[nodiscard]] Launch launch(Arguments options, const char* device) const {
        return gpu_run(
            with(std::move(options),
                 {"--", "python3", source_file("tests/integration/python_program.py"), path, device}));
    }
};

constexpr Milliseconds k_at_once{10'000}; ///< for what only a busy machine delays
constexpr Milliseconds k_too_long{500};   ///< for what must not come

} // namespace

TEST_CASE("Python: while a thread waits at the gate, the others go on", "[quick][python]") {
    PythonProgram program;
    program.sleep();
    CHECK(program.is_alive(k_at_once));
    program.begin_asleep("touch");
    for (int i = 0; i < 3; ++i) CHECK(program.is_alive(k_at_once));
    program.wake_and_hear("0");
    CHECK(program.is_alive(k_at_once));
    CHECK(program.tell("touch") == "0");
    program.process().send("exit 3");
    CHECK(program.process().wait() == 3);
}

TEST_CASE("Python: a thread may wait without its lock where there is a second interpreter", "[python]") {
    PythonProgram program;
    if (program.tell("interpreter") == "none") return skip("this Python makes no second interpreter");
    for (const auto* touch : {"touch_unlocked", "touch"}) {
        program.begin_asleep(touch);
        CHECK(program.is_alive(k_at_once));
        program.wake_and_hear("0");
    }
    CHECK(program.process().errors().empty());
}

TEST_CASE("Python: a thread that waits with a library's mutex keeps Python's lock", "[python]") {
    PythonProgram program;
    program.begin_asleep("allocate_under_mutex");
    pause_for(k_too_long); // for whoever would take the lock, and then wait for the mutex
    program.wake_and_hear("done");
    CHECK(program.is_alive(k_at_once));
    CHECK(program.tell("touch") == "0");
}

TEST_CASE("Python: a thread that waits in a library's constructor keeps Python's lock", "[python]") {
    PythonProgram program;
    program.begin_asleep("load_both " + library_file("libsafety_filler.so") + ' ' +
                         library_file("libsafety_plugin.so"));
    pause_for(k_too_long); // for whoever would take the lock, and then wait for the loader's
    program.wake_and_hear("done");
    CHECK(program.is_alive(k_at_once));
    // And later on it is given up again.
    program.begin_asleep("touch");
    CHECK(program.is_alive(k_at_once));
    program.wake_and_hear("0");
}

TEST_CASE("Python: with --keep-gil they wait too, and go on after waking", "[python]") {
    PythonProgram program({"--keep-gil"});
    program.begin_asleep("touch");
    CHECK_FALSE(program.is_alive(k_too_long));
    program.wake_and_hear("0");
    CHECK(program.is_alive(k_at_once));
}

TEST_CASE("Python: PyTorch is asked for its unused memory before a sleep", "[python]") {
    PythonProgram program({}, "1");
    REQUIRE(program.tell("torch") == "done");
    REQUIRE(program.command("gpu-sleep", {"--level", "0"}).status == 0);
    program.wake();
    CHECK(program.tell("calls") == "0"); // a pause needs no memory
    const auto slept = ended(program.command("gpu-sleep", {"--json"}));
    CHECK(slept.tag("default", "bytes") == std::to_string(4 << 20)); // of two such allocations
    CHECK(program.tell("calls") == "1");
    CHECK(program.tell("context 0") == "inactive"); // none is made for the question
    CHECK(program.tell("context 1") == "active");
    program.wake();
    CHECK(program.tell("calls") == "1");
    for (int i = 0; i < 2; ++i) { // the third call fails, which changes nothing
        program.cycle();
    }
    CHECK(program.tell("calls") == "3");
    CHECK(program.tell("touch") == "0");
}

TEST_CASE("Python: a sleep waits until PyTorch has unmapped, though other memory sleeps", "[python]") {
    PythonProgram program;
    REQUIRE(program.tell("cache_segment") == "done");
    REQUIRE(program.command("gpu-sleep", {"--tags", "default"}).status == 0);
    REQUIRE(program.tell("torch") == "done");
    REQUIRE(program.tell("slow_torch 2200") == "done"); // longer than it waits for the lock
    const auto slept = ended(program.command("gpu-sleep", {"--tags", "cache", "--json"}));
    CHECK(slept.tag("cache", "bytes") == std::to_string(4 << 20)); // of two such allocations
    CHECK(program.tell("calls") == "1");
    CHECK(program.process().errors().empty());
    program.wake();
    CHECK(program.tell("touch") == "0");
}

TEST_CASE("Python: PyTorch is not asked to unmap memory that sleeps", "[python]") {
    PythonProgram program;
    REQUIRE(program.tell("cache_segment") == "done");
    REQUIRE(program.command("gpu-sleep", {"--tags", "cache"}).status == 0);
    REQUIRE(program.tell("torch") == "done");
    program.sleep();
    CHECK(program.tell("calls") == "0");
    program.wake();
    program.sleep();
    CHECK(program.tell("calls") == "1");
    CHECK(program.process().errors().empty());
}

TEST_CASE("Python: a sleep goes on without its lock when that is not to be had", "[python]") {
    PythonProgram program;
    REQUIRE(program.tell("torch") == "done");
    REQUIRE(program.tell("keep_lock 5000") == "kept");
    const auto start = Clock::now();
    program.sleep();
    CHECK(Clock::now() - start >= Milliseconds(1'500));
    CHECK_THAT(program.process().errors(), mentions("Python was busy"));
    CHECK(program.tell("calls") == "0"); // and nobody asks later on
    program.wake();
    CHECK(program.tell("touch") == "0");
}

TEST_CASE("Python: a sleep without time for PyTorch to unmap fails, and the next one waits", "[python]") {
    PythonProgram program;
    REQUIRE(program.tell("cache_segment") == "done");
    REQUIRE(program.tell("torch") == "done");
    REQUIRE(program.tell("slow_torch 1000") == "done");
    CHECK(program.command("gpu-sleep", {"--timeout", "200ms"}).status == 4);
    CHECK(program.tell("touch") == "0"); // awake
    CHECK(ended(program.command("gpu-sleep", {"--json"})).tag("cache", "bytes") == std::to_string(4 << 20));
    CHECK(program.tell("calls") == "1");
    CHECK(program.process().errors().empty());
    program.wake();
}

TEST_CASE("Python: it ends while one of its threads waits at the gate", "[python]") {
    PythonProgram program(GENERATE(Arguments{}, Arguments{"--keep-gil"}));
    program.sleep();
    if (GENERATE(true, false)) {
        program.process().send("background");
        if (program.waits_at_the_gate() && !program.is_alive(k_too_long)) {
            program.wake(); // the lock is kept: nothing else ends it
        }
        REQUIRE(program.process().read_line() == "done");
    }
    program.process().send("exit 5");
    CHECK(program.process().wait() == 5);
    CHECK(program.process().errors().empty());
}

TEST_CASE("Python: it ends while the agent waits for its lock", "[python]") {
    PythonProgram program;
    REQUIRE(program.tell("keep_lock 3000") == "kept");
    program.process().send("exit 6");
    program.sleep();
    CHECK(program.process().wait() == 6);
}

TEST_CASE("Python: the example of the guide for PyTorch does what it says", "[python]") {
    const Arguments command{"python3", source_file("tests/integration/guide_example.py"), source_file("")};
    CHECK(ended(run(gpu_run(with({"--"}, command)))).out == "done\n");
    check_ended(run({command}), 1, mentions("start this program with gpu-run"));
}
