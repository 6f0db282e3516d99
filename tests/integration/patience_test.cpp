// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How long the commands wait, for whom, and what they say when they are interrupted: before the point of no
// return, and behind it.

#include "stage.hpp"

using namespace gpu_sleep::test;
using namespace std::chrono_literals;

namespace {

std::string unique_name() {
    return "gpu-sleep-test-" + std::to_string(::getpid());
}

/// Several tags, so that a sleep and a wake consist of several copies, and of as many unmaps.
void allocate_some_tags(Host& host, int count) {
    for (int i = 0; i < count; ++i) host.tell(fmt::format("alloc tag_{} 2097152 0", i));
}

} // namespace

TEST_CASE("Patience: a test's own counts the time that a process could have run", "[patience]") {
    CHECK(share_of_processors("0.52 0.58 3.59 2/300 4242\n", 2) == 1);
    CHECK(share_of_processors("9.10 4.50 3.59 16/300 4242\n", 2) == 0.125);
    CHECK(share_of_processors("", 2) == 1); // it cannot be read
    CHECK_FALSE(becomes_true([] { return false; }, 50ms));
    Patience none(0ms);
    CHECK(none.left() == 0ms);
}

TEST_CASE("Patience: a name of several users' processes is nobody's until one is chosen", "[patience]") {
    if (::geteuid() != 0) return skip_without_right("be two users");
    const Stage stage;
    const Arguments as_nobody{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    const auto name = unique_name();
    Host own({"GPU_SLEEP_NAME=" + name});
    auto launch = stage.launch(as_nobody);
    launch.environment.push_back("GPU_SLEEP_NAME=" + name);
    Host theirs(launch);
    own.tell("alloc weights 4194304 0");
    theirs.tell("alloc weights 4194304 0");
    const auto ask = [&](const std::string& command, Arguments options = {}) {
        return run({with({command_file(command), name}, options)});
    };
    for (const auto* command : {"gpu-sleep", "gpu-wake"}) {
        const auto refused = ended(ask(command, {"--json"}), 2);
        CHECK(refused.json("/error/code") == "ambiguous_name");
        CHECK_THAT(refused.err, mentions(std::to_string(own.pid())) &&
                                    mentions(std::to_string(theirs.pid())) && mentions("of root") &&
                                    mentions("--user"));
    }
    CHECK(ask("gpu-ps", {"--json"}).json("/processes/1/name") == name);
    CHECK(ask("gpu-ps", {"--json", "--user", "65534"}).json("/processes/1") == "none");

    CHECK(ask("gpu-sleep", {"--user", "65534"}).status == 0);
    CHECK(theirs.state() == "asleep");
    CHECK(own.state() == "awake");
    CHECK(ask("gpu-sleep", {"--user", "root"}).status == 0);
    CHECK(own.state() == "asleep");
    CHECK(own.command("gpu-wake", {"--user", "65534"}).status == 3);
    theirs.wake_whole();
}

TEST_CASE("Patience: --timeout is for copying too, and nothing is changed when it is over", "[patience]") {
    Host host;
    allocate_some_tags(host, 6);
    host.tell("delay cuMemcpyDtoHAsync 400000");
    const auto late = ended(host.command("gpu-sleep", {"--timeout", "1s", "--json"}), 4);
    CHECK(late.json("/processes/0/error/code /processes/0/state") == "timed_out awake");
    CHECK_THAT(host.ask("sleep 1 tag_0 100"), mentions("error"));
    CHECK(host.state() == "awake");
    CHECK(host.command("gpu-sleep").status == 0); // it takes longer than a second
    CHECK(host.state() == "asleep");
    host.tell("delay cuMemcpyHtoDAsync 400000");
    CHECK(ended(host.command("gpu-wake", {"--timeout", "1s", "--json"}), 4).json("/processes/0/state") ==
          "asleep");
    CHECK(host.command("gpu-wake").status == 0);
    host.tell("delay cuMemcpyDtoHAsync 0");
    host.tell("delay cuMemcpyHtoDAsync 0");
    host.check_unharmed();
}

TEST_CASE("Patience: interrupted before the point of no return, a command changes nothing", "[patience]") {
    Host host;
    allocate_some_tags(host, 6);
    const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP);
    host.tell("delay cuMemcpyDtoHAsync 300000");
    auto sleeping = host.start("gpu-sleep", {"--json"});
    await_request(sleeping);
    pause_for(300ms);
    sleeping.signal(signal);
    const auto stopped = ended(sleeping.finish(), 128 + signal);
    CHECK(stopped.json("/processes/0/error/code") == "cancelled");
    CHECK_THAT(stopped.err, mentions("withdrawn"));
    host.tell("delay cuMemcpyDtoHAsync 0");
    host.check_unharmed();
}

TEST_CASE("Patience: an interruption that is ignored stays so", "[patience]") {
    Host host;
    allocate_some_tags(host, 6);
    host.tell("delay cuMemcpyDtoHAsync 200000");
    Process sleeping(Launch{{"sh", "-c", "trap '' INT; exec \"$0\" \"$1\"", command_file("gpu-sleep"),
                             std::to_string(host.pid())}});
    await_request(sleeping);
    pause_for(300ms);
    sleeping.signal(SIGINT);
    CHECK(sleeping.finish().status == 0);
    CHECK(host.state() == "asleep");
}
