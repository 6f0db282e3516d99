// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuda-checkpoint and cr_client, as the callers of NVIDIA's and GPU-CR's commands call them.

#include "deep_machine.hpp"

#include "support/other_user.hpp"
#include "support/tree.hpp"

#include <sys/ptrace.h>

using namespace gpu_sleep::test;

namespace {

std::string pid_of(const Machine& machine) {
    return std::to_string(machine.host.pid());
}
Output call(const Machine& machine, const std::string& name, Arguments arguments, Arguments variables = {}) {
    arguments.insert(arguments.begin(), command_file(name));
    return run({std::move(arguments), machine.here({{}, {}}, std::move(variables)).environment});
}
/// What cuda-checkpoint does for the program.
Output checkpoint(const Machine& machine, const Arguments& arguments, Arguments variables = {}) {
    return call(machine, "cuda-checkpoint", with({"--pid", pid_of(machine)}, arguments),
                std::move(variables));
}
int act(const Machine& machine, const std::string& action, const Arguments& arguments = {}) {
    return checkpoint(machine, with({"--action", action}, arguments)).status;
}
std::string state_of(const Machine& machine) {
    return checkpoint(machine, {"--get-state"}).out;
}
/// Another tool takes these steps by the driver.
int other_tool(const Machine& machine, const Arguments& steps) {
    return run({with({command_file("checkpoint_steps"), pid_of(machine)}, steps),
                machine.here({{}, {}}).environment})
        .status;
}
void check_checkpoint_and_restore(const Machine& machine) {
    REQUIRE(act(machine, "checkpoint") == 0);
    CHECK(state_of(machine) == "checkpointed\n");
    REQUIRE(act(machine, "restore") == 0);
    REQUIRE(act(machine, "unlock") == 0);
    CHECK(state_of(machine) == "running\n");
}
void check_wakes_by_itself(DeepMachine& machine) {
    CHECK(becomes_true([&] { return machine.state() == "awake"; }));
    machine.expect_works();
}

/// While it lives, the threads of the process stand still, all but the first: the simulated driver's own.
class Frozen : NotCopied {
public:
    explicit Frozen(pid_t pid) {
        for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
            const auto thread = static_cast<pid_t>(std::stoi(entry.path().filename()));
            if (thread == pid) continue;
            REQUIRE(::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0);
            REQUIRE(::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0);
            REQUIRE(::waitpid(thread, nullptr, __WALL) == thread);
            threads_.push_back(thread);
        }
    }
    ~Frozen() {
        for (const auto thread : threads_) ::ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
    }

private:
    std::vector<pid_t> threads_;
};

} // namespace

TEST_CASE("cuda-checkpoint: memory of a process with an agent sleeps before the lock", "[driver_engine]") {
    DeepMachine machine;
    Host other(machine.plain());
    other.tell("start");
    const auto before = free_bytes(other);
    const bool touches = GENERATE(false, true);
    for (int round = 0; round < 3; ++round) {
        REQUIRE(act(machine, "lock", {"--timeout", "10000"}) == 0);
        CHECK(state_of(machine) == "locked\n");
        CHECK(machine.state() == "asleep"); // the agent answers, for it keeps from the driver
        CHECK(free_bytes(other) >= before + k_piece_bytes);
        CHECK(act(machine, "lock") == 1);
        REQUIRE(act(machine, "checkpoint") == 0);
        CHECK(state_of(machine) == "checkpointed\n");
        CHECK(machine.state() == "asleep");
        CHECK(free_bytes(other) >= before + k_piece_bytes + k_context_bytes);
        if (touches) machine.expect_held();
        REQUIRE(act(machine, "restore") == 0);
        CHECK(state_of(machine) == "locked\n");
        REQUIRE(act(machine, "unlock") == 0);
        check_wakes_by_itself(machine);
        CHECK(state_of(machine) == "running\n");
        CHECK(free_bytes(other) == before);
    }
}

TEST_CASE("cuda-checkpoint: as CRIU calls it, it waits for no thread but the driver's", "[driver_engine]") {
    DeepMachine machine;
    CHECK(checkpoint(machine, {"--get-restore-tid"}).out == pid_of(machine) + '\n');
    CHECK(state_of(machine) == "running\n");
    REQUIRE(act(machine, "lock", {"--timeout", "10000"}) == 0);
    {
        const Frozen frozen(machine.host.pid());
        const auto begin = Clock::now();
        check_checkpoint_and_restore(machine);
        CHECK(Clock::now() - begin < Milliseconds(4'000));
    }
    check_wakes_by_itself(machine);
}

TEST_CASE("cuda-checkpoint: as snapshot agents call it, for several processes at once", "[driver_engine]") {
    DeepMachine machine;
    Host other(machine.here(captured_launch(k_linked)));
    const auto piece = make_piece(other, "plain", k_piece_bytes);
    const auto of_both = [&](const Arguments& arguments, Arguments variables = {}) {
        const Arguments pids{"-p", pid_of(machine), "-p", std::to_string(other.pid())};
        return call(machine, "cuda-checkpoint", with(pids, arguments), std::move(variables));
    };
    for (const auto* const action : {"lock", "checkpoint", "restore", "unlock"})
        REQUIRE(of_both({"--action", action}).status == 0);
    CHECK(of_both({"--get-state"}).out == "running\nrunning\n");
    check_wakes_by_itself(machine);
    check_intact(other, piece);
    // What fails for one is taken back for all.
    check_ended(of_both({"--toggle"}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessCheckpoint:2:801"}), 1,
                mentions(fmt::format("cuda-checkpoint: process {}: ", other.pid())));
    CHECK(of_both({"--get-state"}).out == "running\nrunning\n");
    REQUIRE(act(machine, "lock") == 0);
    CHECK_THAT(of_both({"--toggle"}).err, mentions("is locked"));
    CHECK(of_both({"--action", "lock"}).status == 1);
    CHECK(of_both({"--get-state"}).out == "locked\nrunning\n");
    REQUIRE(act(machine, "unlock") == 0);
    check_wakes_by_itself(machine);
    check_intact(other, piece);
}

TEST_CASE("cuda-checkpoint: a toggle, by a thread's id, whose checkpoint may fail", "[driver_engine]") {
    DeepMachine machine;
    std::string thread;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + pid_of(machine) + "/task"))
        if (entry.path().filename() != pid_of(machine)) thread = entry.path().filename();
    const auto toggle = [&](Arguments variables = {}) {
        return call(machine, "cuda-checkpoint", {"--toggle", "--pid", thread}, std::move(variables)).status;
    };
    CHECK(toggle({"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessCheckpoint:1:801"}) == 1);
    CHECK(state_of(machine) == "running\n");
    check_wakes_by_itself(machine);
    for (int round = 0; round < 2; ++round) {
        REQUIRE(toggle() == 0);
        CHECK(state_of(machine) == "checkpointed\n");
        REQUIRE(toggle() == 0);
        check_wakes_by_itself(machine);
    }
}

TEST_CASE("cuda-checkpoint: a command that waits for a locked process names the lock", "[driver_engine]") {
    DeepMachine machine;
    REQUIRE(act(machine, "lock") == 0);
    if (GENERATE(false, true)) REQUIRE(act(machine, "checkpoint") == 0);
    for (const auto* const command : {"gpu-wake", "gpu-sleep"})
        CHECK_THAT(ended(machine.command(command, {"--timeout", "100ms"}), 4).err,
                   mentions("locked for a checkpoint"));
    CHECK(machine.state() == "asleep");
    if (state_of(machine) == "checkpointed\n") REQUIRE(act(machine, "restore") == 0);
    REQUIRE(act(machine, "unlock") == 0);
    check_wakes_by_itself(machine);
}

TEST_CASE("cuda-checkpoint: what another tool unlocks wakes by its first use", "[driver_engine]") {
    DeepMachine machine;
    REQUIRE(act(machine, "lock") == 0);
    const bool waits = GENERATE(false, true); // while it is locked
    if (waits) machine.expect_held();
    REQUIRE(act(machine, "checkpoint") == 0);
    REQUIRE(other_tool(machine, {"restore", "unlock"}) == 0);
    CHECK(state_of(machine) == "running\n");
    machine.expect_works();
    CHECK(machine.command("gpu-ps").json("/processes/0/report/gate/on_touch") == "wait"); // its own again
    CHECK(act(machine, "unlock") == 1);
}

TEST_CASE("cuda-checkpoint: a caller that unlocks what it did not lock", "[driver_engine]") {
    DeepMachine machine;
    SECTION("what another caller has locked: its next step fails, and the process wakes by its first use") {
        REQUIRE(act(machine, "lock") == 0);
        REQUIRE(other_tool(machine, {"unlock"}) == 0);
        check_ended(checkpoint(machine, {"--action", "checkpoint"}), 1, mentions("the driver says"));
        machine.expect_works();
    }
    SECTION("what sleeps deeply") {
        machine.fall_asleep();
        check_ended(checkpoint(machine, {"--action", "unlock"}), 1, mentions("the driver says"));
        CHECK(machine.is_deep());
        machine.wake_whole();
    }
    SECTION("what is on its way to a deep sleep: it sleeps all the same, but not deeply") {
        const Scratch place;
        const auto trace = place.file("trace");
        Process sleep(machine.launch(
            "deep", {"--json"},
            {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessCheckpoint:1s", "GPU_SLEEP_SIM_TRACE=" + trace}));
        REQUIRE(becomes_true([&] { return calls_done(trace, "cuCheckpointProcessLock") > 0; }));
        CHECK(act(machine, "unlock") == 0);
        CHECK(sleep.wait() == 7);
        CHECK(machine.state() == "asleep");
        machine.wake_whole();
    }
}

TEST_CASE("cuda-checkpoint: what slept before sleeps on, and is restored", "[driver_engine]") {
    DeepMachine machine;
    const bool is_paused = GENERATE(false, true);
    REQUIRE(machine.command("gpu-sleep", {"--level", is_paused ? "0" : "1"}).status == 0);
    for (int round = 0; round < 2; ++round) {
        REQUIRE(act(machine, "lock") == 0);
        check_checkpoint_and_restore(machine);
    }
    machine.expect_held();
    pause_for(Milliseconds(500));
    CHECK(machine.state() == (is_paused ? "paused" : "asleep"));
    machine.wake();
    machine.expect_works();
}

TEST_CASE("cuda-checkpoint: of a process in part asleep, what was awake wakes again", "[driver_engine]") {
    DeepMachine machine({"GPU_SLEEP_RULES=min=8388608,tag=big"});
    const auto big = make_piece(machine.host, "plain", 2 * k_piece_bytes);
    const auto state_of_tag = [&](const std::string& tag) {
        return machine.command("gpu-ps").tag(tag, "state");
    };
    REQUIRE(machine.command("gpu-sleep", {"--tags", "big"}).status == 0);
    for (int round = 0; round < 2; ++round) {
        REQUIRE(act(machine, "lock") == 0);
        CHECK(state_of_tag("default") == "asleep");
        check_checkpoint_and_restore(machine);
        CHECK(becomes_true([&] { return state_of_tag("default") == "awake"; }));
        CHECK(state_of_tag("big") == "asleep");
    }
    machine.wake();
    check_intact(machine.host, big);
    machine.expect_works();
}

TEST_CASE("cuda-checkpoint: who refuses to sleep is locked as it is, all within reach", "[driver_engine]") {
    DeepMachine machine;
    REQUIRE(machine.command("gpu-sleep").status == 0);
    machine.wake_whole(); // contents are retained
    REQUIRE(machine.command("gpu-inhibit").status == 0);
    REQUIRE(act(machine, "lock") == 0);
    CHECK(machine.state() == "awake");
    check_checkpoint_and_restore(machine);
    machine.expect_works();
    REQUIRE(machine.command("gpu-inhibit", {"--release"}).status == 0);
    REQUIRE(machine.command("gpu-sleep").status == 0);
    machine.wake_whole();
}

TEST_CASE("cuda-checkpoint: without an agent it is the driver's alone", "[driver_engine]") {
    Machine machine;
    REQUIRE(checkpoint(machine, {"--toggle"}).status == 0);
    CHECK(state_of(machine) == "checkpointed\n");
    machine.expect_held();
    const auto both = machine.uuid(0) + "=" + machine.uuid(1) + "," + machine.uuid(1) + "=" + machine.uuid(0);
    CHECK(act(machine, "restore", {"--device-map", machine.uuid(0)}) == 1);
    REQUIRE(act(machine, "restore", {"--device-map", both}) == 0);
    CHECK(checkpoint(machine, {"--toggle"}).status == 1); // it is locked
    REQUIRE(act(machine, "unlock") == 0);
    machine.expect_awake();
}

TEST_CASE("cuda-checkpoint: what cannot be done ends with 1, and nothing has changed", "[driver_engine]") {
    DeepMachine machine;
    for (const auto* const action : {"checkpoint", "restore", "unlock", "sleep", ""})
        CHECK(act(machine, action) == 1);
    CHECK_THAT(checkpoint(machine, {}).err, mentions("cuda-checkpoint: say what to do"));
    CHECK(checkpoint(machine, {"--get-state", "--toggle"}).status == 1);
    for (const auto* const pid : {"1234567890", "0", "x"}) {
        CHECK(ended(call(machine, "cuda-checkpoint", {"--get-state", "--pid", pid}), 1).err ==
              fmt::format("cuda-checkpoint: there is no process {}\n", pid));
    }
    CHECK(checkpoint(machine, {"--help"}).status == 0);
    CHECK_THAT(checkpoint(machine, {"--help"}).out, mentions("--action"));
    CHECK(checkpoint(machine, {"--action", "lock"}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessLock:1:600"})
              .status == 1);
    check_wakes_by_itself(machine);
}

TEST_CASE("cuda-checkpoint: a process that ends between the steps is an error", "[driver_engine]") {
    DeepMachine machine;
    REQUIRE(act(machine, "lock") == 0);
    const bool is_checkpointed = GENERATE(false, true);
    if (is_checkpointed) REQUIRE(act(machine, "checkpoint") == 0);
    machine.host.kill();
    for (const auto* const action : {"checkpoint", "restore", "unlock", "lock"})
        CHECK(act(machine, action) == 1);
}

TEST_CASE("cuda-checkpoint: another user's process is out of reach", "[driver_engine]") {
    if (::geteuid() != 0) return skip_without_right("act as another user");
    DeepMachine machine;
    const auto environment = machine.here({{}, {}}).environment;
    constexpr std::string_view k_state = "GPU_SLEEP_SIM_STATE=";
    for (const auto& each : environment)
        if (each.starts_with(k_state)) {
            const std::filesystem::path file(each.substr(k_state.size()));
            std::filesystem::permissions(file, std::filesystem::perms(0666));
            std::filesystem::permissions(file.parent_path(), std::filesystem::perms(0711));
        }
    const auto as_other = [&](const std::string& name, const Arguments& arguments) {
        return run({with({"setpriv", "--reuid", std::to_string(k_other_user), "--clear-groups",
                          command_file(name), "-p", pid_of(machine)},
                         arguments),
                    environment});
    };
    for (const auto* const action : {"lock", "checkpoint", "restore", "unlock"}) {
        const auto refused = ended(as_other("cuda-checkpoint", {"--action", action}), 1);
        CHECK_THAT(refused.err,
                   mentions("cuda-checkpoint: process " + pid_of(machine) + ": the driver says"));
    }
    for (const auto* const action : {"-i", "-c", "-r"}) {
        check_ended(as_other("cr_client", {action}), 1, mentions("cr_client: "));
    }
    CHECK(machine.state() == "awake");
    machine.expect_works();
}

TEST_CASE("cuda-checkpoint: jobs are for the next command of the name in PATH", "[driver_engine]") {
    Machine machine;
    const Scratch place;
    const auto next = place.file("cuda-checkpoint");
    std::ofstream(next) << "#!/bin/sh\necho next \"$@\"\n";
    std::filesystem::permissions(next, std::filesystem::perms::owner_all);
    const auto own = std::filesystem::path(command_file("cuda-checkpoint")).parent_path().native();
    const Arguments job{"--launch-job", "--", "python3", "--pid"};
    CHECK(
        call(machine, "cuda-checkpoint", job, {"PATH=" + own + ":" + place.path().string() + ":/bin"}).out ==
        "next --launch-job -- python3 --pid\n");
    check_ended(call(machine, "cuda-checkpoint", {"--job-file=x"}, {"PATH=" + own}), 1,
                mentions("cuda-checkpoint: only NVIDIA's command runs jobs"));
}

TEST_CASE("cr_client: it keeps what a process with an agent has, and brings it back", "[driver_engine]") {
    DeepMachine machine;
    const auto client = [](const Machine& its, const Arguments& arguments) {
        return call(its, "cr_client", with({"-p", pid_of(its)}, arguments));
    };
    CHECK(client(machine, {"-i"}).status == 0);
    REQUIRE(client(machine, {"-c", "-m", "-s", "4096:8192"}).status == 0);
    CHECK(machine.state() == "asleep");
    REQUIRE(client(machine, {"-r"}).status == 0);
    CHECK(machine.state() == "awake");
    machine.expect_works();
    CHECK_THAT(client(machine, {}).err, mentions("cr_client: say what to do"));
    const Machine without;
    for (const auto* const action : {"-i", "-c", "-r"}) CHECK(client(without, {action}).status == 1);
}
