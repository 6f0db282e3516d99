// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs that treat the driver in every way that real ones do: none is harmed by the agent. They are in
// safety/. Libraries of theirs are in host_libraries_test.cpp.

#include "routine.hpp"
#include "support/shared_devices.hpp"

using namespace gpu_sleep::test;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < text.size();) {
        const auto end = std::min(text.find('\n', begin), text.size());
        lines.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    std::sort(lines.begin(), lines.end());
    return lines;
}

std::size_t count_in(const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
}

constexpr const char* k_first_note = "notes/0";
constexpr const char* k_touch_trouble = "GPU work could not wake this process yet: ";

} // namespace

TEST_CASE("Host safety: a program ends while it is asleep as it does awake", "[quick][host_safety]") {
    auto program = Program::ready({"end"});
    program.sleep();
    const auto end = program.go_on_to_end(7);
    CHECK(end.out == "a last word\n");
    CHECK(end.err.empty());
}

TEST_CASE("Host safety: destructors and exit handlers free and touch while it is asleep", "[host_safety]") {
    const bool is_asleep = GENERATE(false, true);
    auto program = Program::ready({"clean_up"}, {"--on-touch", GENERATE("wait", "wake", "fail")});
    if (is_asleep) program.sleep();
    const auto end = program.go_on_to_end(8);
    // Asleep for good: nobody wakes a process that is ending.
    CHECK(lines_of(end.out) ==
          (is_asleep ? Arguments{"global refused freed", "handler freed", "static refused freed"}
                     : Arguments{"global touched freed", "handler freed", "static touched freed"}));
    CHECK(end.err.empty());
}

TEST_CASE("Host safety: a destructor gives mapped memory back, awake and asleep", "[host_safety]") {
    const bool is_asleep = GENERATE(false, true);
    auto program = Program::ready({"unmap_at_exit"});
    if (is_asleep) program.sleep();
    CHECK(program.go_on_to_end().out == (is_asleep ? "unmapped 4 freed 0\n" : "unmapped 0 freed 0\n"));
}

TEST_CASE("Host safety: a destructor may join a thread that waits at the gate", "[host_safety]") {
    auto program = Program::ready({"join"});
    program.sleep();
    program.go_on_to_end(9);
}

TEST_CASE("Host safety: children of a sleeping process work", "[host_safety]") {
    auto program = Program::ready({"fork"});
    program.sleep();
    program.go_on_to("the child works");
    CHECK(program.line() == "children: 11 12");
    CHECK(program.line() == "forked");
    CHECK(program.state() == "asleep");
    program.wake();
    program.go_on_to("intact");
    CHECK(program.ends().status == 0);
}

TEST_CASE("Host safety: a child that becomes another program has an agent of its own", "[host_safety]") {
    auto program = Program::ready({"fork_and_exec"});
    program.sleep();
    program.go_on();
    const auto line = program.line();
    REQUIRE(line.substr(0, 6) == "ready ");
    const auto child = static_cast<pid_t>(std::stoi(line.substr(6)));
    CHECK(child != program.process().pid());
    CHECK(Program::command_for(child, "gpu-ps", {"--json"}).json("/processes/0/state") == "awake");
    CHECK(Program::command_for(child, "gpu-sleep").status == 0);
    CHECK(Program::command_for(child, "gpu-wake").status == 0);
    CHECK(program.state() == "asleep");
    program.go_on_to("touched 0");
    CHECK(program.line() == "child 0");
    program.wake();
    program.go_on_to_end();
}

TEST_CASE("Host safety: workers of a process that never used CUDA sleep each for itself", "[host_safety]") {
    Program program({"workers"});
    const auto first = static_cast<pid_t>(std::stoi(program.line()));
    const auto second = static_cast<pid_t>(std::stoi(program.line()));
    for (const auto worker : {first, second}) {
        CHECK(Program::command_for(worker, "gpu-sleep").status == 0);
        CHECK(Program::command_for(worker, "gpu-ps", {"--json"}).json("/processes/0/state") == "asleep");
    }
    for (const auto worker : {first, second}) CHECK(Program::command_for(worker, "gpu-wake").status == 0);
    pause_for(Milliseconds(200)); // they compare their memory all the time
    program.go_on_to_end();
}

TEST_CASE("Host safety: the primary context may be reset, awake and asleep", "[host_safety]") {
    auto program = Program::ready({"reset"});
    CHECK(program.report(k_intercepted_bytes) == k_four_mib);
    program.go_on_to("reset");
    CHECK(program.report(k_intercepted_bytes) != k_four_mib);
    program.go_on_to("again");
    program.sleep();
    program.go_on_to("reset");
    program.wake();
    program.go_on_to("last");
    program.cycle();
    program.go_on_to("reset");
    program.go_on_to_end();
}

TEST_CASE("Host safety: a context of the program's own may end, awake and asleep", "[host_safety]") {
    const bool is_asleep = GENERATE(false, true);
    auto program = Program::ready({"own_context"});
    if (is_asleep) program.sleep();
    program.go_on_to("destroyed");
    if (!is_asleep) program.sleep();
    CHECK(program.report(k_intercepted_bytes) == k_four_mib);
    program.wake();
    program.go_on_to("intact");
    CHECK(program.ends().status == 0);
}

TEST_CASE("Host safety: a thread's last destructors use CUDA", "[host_safety]") {
    auto program = Program::ready({"thread_local"});
    program.go_on_to("thread touched freed");
    REQUIRE(program.line() == "again");
    program.sleep();
    program.go_on();
    REQUIRE(program.waits_at_the_gate());
    program.wake();
    CHECK(program.line() == "thread touched freed");
    REQUIRE(program.line() == "done");
    program.go_on_to_end();
}

TEST_CASE("Host safety: a program that crashes within CUDA crashes as without the agent", "[host_safety]") {
    Process plain({{command_file("intercepted_program_linked"), "crash"}, environment_for_others()});
    REQUIRE(plain.read_line() == "ready");
    plain.send("");
    auto intercepted = Program::ready({"crash"});
    intercepted.go_on();
    const auto expected = plain.finish();
    const auto end = ended(intercepted.ends(), expected.status);
    CHECK(end.status != 0);
    if (!is_sanitized()) {
        CHECK(end.status == 128 + SIGABRT);
        CHECK(end.err == expected.err);
    }
}

TEST_CASE("Host safety: a thread may be cancelled while it waits for memory or the GPU", "[host_safety]") {
    Program program({GENERATE("cancel", "cancel_waits")});
    REQUIRE(program.line() == "cancelled");
    program.cycle();
    CHECK(program.go_on_to_end().err.empty());
}

TEST_CASE("Host safety: a program may jump out of a call that waits until it is woken", "[host_safety]") {
    auto program = Program::ready({"jump", "gate"});
    program.sleep();
    program.go_on();
    REQUIRE(program.waits_at_the_gate());
    REQUIRE(::kill(program.process().pid(), SIGINT) == 0);
    REQUIRE(program.line() == "jumped");
    CHECK(program.state() == "asleep");
    if (GENERATE(false, true)) {
        program.wake();
        program.sleep();
    }
    program.go_on(); // and its next call is held as any other
    REQUIRE(program.waits_at_the_gate());
    program.wake();
    REQUIRE(program.line() == "touched");
    program.cycle();
    CHECK(program.go_on_to_end().err.empty());
}

TEST_CASE("Host safety: a program may jump out of a call that the driver is busy with", "[host_safety]") {
    auto program = Program::ready({"jump", GENERATE("driver", "copy")});
    program.go_on_to("waits");
    pause_for(Milliseconds(100));
    REQUIRE(::kill(program.process().pid(), SIGINT) == 0);
    REQUIRE(program.line() == "jumped");
    program.go_on_to("touched");
    program.cycle();
    program.go_on_to_end();
}

TEST_CASE("Host safety: what is asked for wrongly is answered as the driver does", "[host_safety]") {
    const auto plain =
        run({{command_file("intercepted_program_linked"), "symbols"}, environment_for_others()});
    const auto intercepted = Program({"symbols"}).ends();
    CHECK(intercepted.out == plain.out);
    CHECK(intercepted.status == plain.status);
    CHECK_THAT(plain.out, mentions("cuNoSuchThing"));
}

TEST_CASE("Host safety: a touch that cannot wake waits for memory, and says so once", "[host_safety]") {
    const SharedDevices devices{64 * k_mib};
    auto sleeper = Program::ready({"touch_often"}, {"--on-touch", "wake"}, devices.environment());
    sleeper.sleep();
    auto holder = Program::ready({"hold", "46"}, {}, devices.environment());
    sleeper.go_on("touch");
    REQUIRE(sleeper.waits_at_the_gate());
    pause_for(Milliseconds(2'500)); // long enough to ask again
    CHECK(sleeper.state() == "asleep");
    CHECK(sleeper.report("gate/waiting_threads") == "1");
    CHECK(count_in(sleeper.process().errors(), k_touch_trouble) == 1);
    // Whoever looks learns it too, and what is short.
    CHECK_THAT(sleeper.report(k_first_note), mentions(k_touch_trouble) && mentions("GPU 0"));
    CHECK(sleeper.report("wakes_waiting/0/by_touch wakes_waiting/1") == "true none");
    holder.go_on_to("freed");
    CHECK(sleeper.line() == "touched 0");
    CHECK(sleeper.state() == "awake");
    CHECK(sleeper.report(k_first_note) == "none");
    holder.go_on_to_end();
    CHECK(sleeper.ends().status == 0);
}

TEST_CASE("Host safety: a touch that cannot wake the process fails after its limit", "[host_safety]") {
    const SharedDevices devices{64 * k_mib};
    auto sleeper = Program::ready({"touch_often"}, {"--on-touch", "wake", "--touch-limit", "700ms"},
                                  devices.environment());
    sleeper.sleep();
    auto holder = Program::ready({"hold", "46"}, {}, devices.environment());
    sleeper.go_on("touch");
    CHECK(sleeper.line() == "touched 802"); // CUDA_ERROR_SYSTEM_NOT_READY
    CHECK(sleeper.state() == "asleep");
    CHECK(sleeper.report(k_first_note) == "none"); // for nobody waits any more
    CHECK(becomes_true([&] { return sleeper.report("wakes_waiting/0") == "none"; }));
    holder.go_on_to("freed");
    sleeper.go_on("touch");
    CHECK(sleeper.line() == "touched 0");
    holder.go_on_to_end();
    CHECK(sleeper.ends().status == 0);
}
