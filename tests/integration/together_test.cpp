// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Processes that sleep and wake together, as a tree or as a group: all or none, whatever happens on the way.

#include "peer.hpp"

using namespace gpu_sleep::test;
using Say = model::Directive::Kind;
using Phase = model::Progress::Phase;

namespace {

/// Several processes with memory of their own, descendants of this test's process.
class Family {
public:
    explicit Family(std::size_t count, const Arguments& environment = {}) {
        for (std::size_t i = 0; i < count; ++i) add(environment);
    }
    Host& add(const Arguments& environment = {}) {
        auto& host = hosts_.emplace_back(environment);
        host.tell("alloc weights 8388608 0");
        return host;
    }
    [[nodiscard]] Host& operator[](std::size_t index) { return hosts_[index]; }
    [[nodiscard]] std::size_t size() const noexcept { return hosts_.size(); }

    /// A command for the tree of which this test's process is the root.
    [[nodiscard]] static Process start(const std::string& name, Arguments arguments = {}) {
        return Process(Launch{with({command_file(name), std::to_string(::getpid()), "--tree"}, arguments)});
    }
    [[nodiscard]] static Output command(const std::string& name, Arguments arguments = {}) {
        return start(name, std::move(arguments)).finish();
    }

    /// How many of the tree are in this state: by one gpu-ps for all.
    [[nodiscard]] static std::size_t count(const std::string& state) {
        const auto root = std::to_string(::getpid());
        const auto states = run({{command_file("gpu-ps"), root, "--json"}}).of_all("/state");
        return static_cast<std::size_t>(std::count(states.begin(), states.end(), state));
    }
    void check_all_awake() {
        CHECK(count("awake") >= size()); // and others of the test
        for (auto& host : hosts_) host.check_whole();
    }
    /// Whatever state they are in, the next command completes it, and nothing is lost.
    void check_completes() {
        CHECK(succeeded(command("gpu-sleep")));
        CHECK(count("asleep") == size());
        CHECK(command("gpu-wake").status == 0);
        check_all_awake();
    }

private:
    std::deque<Host> hosts_;
};

/// A command in the hands of a test: a joint request to one process, and what it says of it.
class Asker {
public:
    Asker(const Host& host, const protocol::Request& request) : peer_(host) { peer_.send(request); }

    void say(Say kind, std::uint32_t count = 1) {
        peer_.send(protocol::Request(model::Directive{kind, count}));
    }
    /// Reads on until the process says that, and whether it does.
    [[nodiscard]] bool hears(Phase phase) {
        for (auto reply = peer_.next(); reply; reply = peer_.next()) {
            if (std::holds_alternative<model::Failure>(*reply)) return false;
            const auto* progress = std::get_if<model::Progress>(&*reply);
            if (progress && progress->phase == phase) return true;
            if (!progress) return false;
        }
        return false;
    }
    /// The last word: the state, or the error's name.
    [[nodiscard]] std::string answer() {
        for (auto reply = peer_.next(); reply; reply = peer_.next()) {
            if (const auto* report = std::get_if<model::Report>(&*reply))
                return std::string(model::to_string(report->state));
            if (const auto* failure = std::get_if<model::Failure>(&*reply))
                return std::string(traits(failure->error.code).name);
        }
        return "none";
    }
    void hang_up() { peer_.hang_up(); }

private:
    Peer peer_;
};

protocol::Request joint_sleep() {
    model::SleepRequest request;
    request.joint = true;
    return request;
}
protocol::Request joint_wake() {
    model::WakeRequest request;
    request.joint = true;
    return request;
}

int rounds(int few) {
    const char* const often = std::getenv("GPU_SLEEP_TEST_TOGETHER");
    return often ? std::atoi(often) : few;
}

} // namespace

TEST_CASE("Together: a tree sleeps and wakes as one", "[quick][threads][together]") {
    Family family(3);
    family[1].tell("two_line_name"); // a newline hides no member
    CHECK(run({{command_file("gpu-ps"), std::to_string(family[1].pid()), "--json"}})
              .json("/processes/0/state") == "awake");
    CHECK_THAT(ended(Family::command("gpu-sleep", {"--dry-run"})).out,
               mentions("3 processes would sleep; 24.0 MiB of GPU memory would be freed"));
    family.check_all_awake();
    CHECK_THAT(ended(Family::command("gpu-sleep")).out,
               mentions("3 processes are asleep; 24.0 MiB of GPU memory freed"));
    CHECK(family.count("asleep") == 3);
    CHECK(Family::command("gpu-sleep").status == 0); // already
    CHECK(ended(Family::command("gpu-wake", {"--json"})).of_all("/state") == Arguments(3, "awake"));
    family.check_all_awake();
}

TEST_CASE("Together: what sleeps in host memory goes to files as one", "[together]") {
    Family family(1, captured());
    family.add(captured({"GPU_SLEEP_LIVE_BYTES=weights=1GiB"}));
    REQUIRE(succeeded(Family::command("gpu-sleep", {"--gate", "checked"})));
    const Scratch scratch;
    const Arguments in_files{"--store", "file", "--dir", scratch.file("sleep")};
    family[1].tell("spin 5000");
    CHECK(Family::command("gpu-sleep", with(in_files, {"--timeout", "300ms"})).status == 4);
    for (std::size_t i = 0; i < family.size(); ++i) CHECK(family[i].report("file_bytes") == "0");
    CHECK(succeeded(Family::command("gpu-sleep", in_files)));
    for (std::size_t i = 0; i < family.size(); ++i) CHECK(family[i].report("file_bytes") != "0");
    CHECK(Family::command("gpu-wake").status == 0);
    family.check_all_awake();
}

TEST_CASE("Together: one that refuses keeps all awake", "[together]") {
    Family family(4);
    SECTION("inhibited") {
        family[2].tell("inhibit");
        const auto refused = ended(Family::command("gpu-sleep", {"--json"}), 1);
        CHECK(refused.json("/exit_status /processes/2/error/code /processes/0/error/code") ==
              "1 inhibited cancelled");
        CHECK_THAT(refused.err, mentions("none of 4 processes was put to sleep"));
        family.check_all_awake();
        family[2].tell("uninhibit");
    }
    SECTION("short of memory when the others are ready") {
        family[1].tell("fail cuMemHostRegister 1 2"); // CUDA_ERROR_OUT_OF_MEMORY
        family[1].tell("fail cuMemcpyDtoHAsync 1 999");
        CHECK(Family::command("gpu-sleep").status != 0);
        family.check_all_awake();
    }
    family.check_completes();
}

TEST_CASE("Together: one that begins to use the GPU meanwhile has all go back", "[together]") {
    Family family(2);
    family[1].tell("hold");
    auto sleeping = Family::start("gpu-sleep");
    await_request(sleeping);
    pause_for(Milliseconds(300)); // it knows its processes by now
    family.add();
    family[1].tell("resume");
    check_ended(sleeping.finish(), 1, mentions("has started to use the GPU in the meantime; try again"));
    family.check_all_awake();
    family.check_completes();
}

TEST_CASE("Together: two commands for the same processes both succeed", "[together]") {
    Family family(3);
    for (int i = 0; i < 3; ++i) {
        auto one = Family::start("gpu-sleep");
        auto other = Family::start("gpu-sleep");
        CHECK(one.finish().status == 0);
        CHECK(other.finish().status == 0);
        CHECK(family.count("asleep") == 3);
        CHECK(Family::command("gpu-wake").status == 0);
    }
    family.check_all_awake();
}

TEST_CASE("Together: one that is killed while the others wait takes nobody along", "[together]") {
    Family family(3);
    {
        LoadedHost rank;
        const int k_begin_ms = is_sanitized() ? 2'000 : 500; // by then the command has found it, and asked
        rank.tell(fmt::format("delay cuMemcpyDtoHAsync {}", 2'000 * k_begin_ms));
        auto sleeping = Family::start("gpu-sleep");
        await_request(sleeping);
        pause_for(Milliseconds(k_begin_ms));
        rank.kill();
        CHECK(sleeping.finish().status == 3);
    }
    family.check_all_awake();
    family.check_completes();
}

TEST_CASE("Together: of one that ends by itself while it waits nothing hangs", "[together]") {
    Family family(1);
    {
        LoadedHost rank;
        Asker asker(rank, joint_sleep());
        REQUIRE(asker.hears(Phase::drained));
        asker.say(Say::prepare);
        REQUIRE(asker.hears(Phase::ready));
        CHECK(rank.state() == "awake"); // as it was before; and the question is answered
        if (!is_sanitized()) CHECK(rank.tell("raw_fork") == "0"); // a sanitizer looks for leaks in the child
        CHECK(rank.tell("fork").ends_with(" 0"));
        rank.process().send("exit 0");
        CHECK(rank.wait() == 0);
    }
    family.check_completes();
}

TEST_CASE("Together: a command that dies before it has told all leaves none between", "[together]") {
    Family family(2);
    const bool wakes = GENERATE(false, true);
    if (wakes) REQUIRE(Family::command("gpu-sleep").status == 0);
    const auto request = wakes ? joint_wake() : joint_sleep();
    Asker told(family[0], request);
    Asker untold(family[1], request);
    for (auto* each : {&told, &untold}) {
        if (!wakes) REQUIRE(each->hears(Phase::drained));
        if (!wakes) each->say(Say::prepare);
        REQUIRE(each->hears(Phase::ready));
    }
    told.say(Say::commit);
    told.hang_up();
    untold.hang_up();
    CHECK(becomes_true([&] { return family[0].state() == (wakes ? "awake" : "asleep"); }));
    CHECK(becomes_true([&] { return family[1].state() == (wakes ? "asleep" : "awake"); }));
    if (wakes) {
        CHECK(Family::command("gpu-wake").status == 0);
        family.check_all_awake();
    }
    family.check_completes();
}

TEST_CASE("Together: a word that comes too early, or is none, does no harm", "[together]") {
    Family family(1);
    Asker asker(family[0], joint_sleep());
    asker.say(Say::hold_on);
    REQUIRE(asker.hears(Phase::drained));
    asker.say(Say::commit);
    asker.say(Say::let_through);
    REQUIRE(asker.hears(Phase::drained)); // it holds nothing, and says how it is again
    asker.say(Say::prepare);
    REQUIRE(asker.hears(Phase::ready));
    asker.say(Say::prepare);
    asker.say(Say::commit);
    CHECK(asker.answer() == "asleep");
    CHECK(Family::command("gpu-wake").status == 0);
    Asker other{family[0], model::Directive{Say::commit}};
    CHECK(other.answer() == "internal");
    family.check_all_awake();
}

TEST_CASE("Together: a command that hangs is not waited for", "[together]") {
    Family family(2);
    family[1].tell("hold");
    auto sleeping = Family::start("gpu-sleep");
    await_request(sleeping);
    pause_for(Milliseconds(500)); // the first waits by now
    sleeping.signal(SIGSTOP);
    family[1].tell("resume");
    const auto start = Clock::now();
    Asker late(family[0], joint_sleep()); // its turn comes when the other has gone
    CHECK(late.hears(Phase::drained));
    CHECK(Clock::now() - start < Milliseconds(30'000));
    late.hang_up();
    sleeping.signal(SIGCONT);
    CHECK(sleeping.finish().status != 0);
    family.check_all_awake();
    family.check_completes();
}

TEST_CASE("Together: a command killed at any moment loses nothing", "[together]") {
    Family family(3);
    std::mt19937 random(7);
    for (int i = 0; i < rounds(20); ++i) {
        {
            const auto killed = Family::start(i % 2 == 0 ? "gpu-sleep" : "gpu-wake");
            pause_for(Milliseconds(random() % 60));
        }
        if (i % 4 == 1) continue; // on top of what the last one left
        REQUIRE(succeeded(Family::command("gpu-sleep")));
        REQUIRE(family.count("asleep") == 3);
        if (i % 3 == 0) REQUIRE(Family::command("gpu-wake").status == 0);
    }
    REQUIRE(Family::command("gpu-wake").status == 0);
    family.check_all_awake();
}

TEST_CASE("Together: a group sleeps and wakes as one, and nobody else", "[together]") {
    const auto name = fmt::format("group-{}", ::getpid());
    Family family(2, {"GPU_SLEEP_GROUP=" + name});
    LoadedHost other;
    const auto group = [&](const std::string& command, Arguments arguments = {}) {
        return run({with({command_file(command), "--group", name}, arguments)});
    };
    CHECK(family[0].command("gpu-ps", {"--json"}).json("/processes/0/group") == name);
    CHECK(succeeded(group("gpu-sleep")));
    CHECK(family.count("asleep") == 2);
    CHECK(other.state() == "awake");
    CHECK(group("gpu-wake").status == 0);
    family.check_all_awake();
    const auto none = ended(run({{command_file("gpu-sleep"), "--group", "there-is-none"}}), 3);
    CHECK_THAT(none.err, mentions("in the group 'there-is-none'; other groups: ") && mentions(name));
    CHECK_THAT(family[0].command("gpu-ps").out, mentions("group " + name));
}

TEST_CASE("Together: ranks of a job sleep at any moment of their collectives", "[together]") {
    const Scratch scratch;
    constexpr std::size_t k_ranks = 2;
    const auto name = fmt::format("job-{}", ::getpid());
    Family family(k_ranks, {"GPU_SLEEP_CAPTURE=1", "GPU_SLEEP_GROUP=" + name});
    for (std::size_t i = 0; i < k_ranks; ++i)
        family[i].tell(fmt::format("collective {} {} {}", scratch.file("meeting"), k_ranks, i));
    std::mt19937 random(11);
    for (int i = 0; i < rounds(12); ++i) {
        const auto before = std::stoull(family[0].tell("collective_steps"));
        REQUIRE(becomes_true([&] { return std::stoull(family[0].tell("collective_steps")) > before + 5; }));
        pause_for(Milliseconds(random() % 20));
        REQUIRE(succeeded(run({{command_file("gpu-sleep"), "--group", name, "--timeout", "20s"}})));
        REQUIRE(family.count("asleep") == k_ranks);
        REQUIRE(run({{command_file("gpu-wake"), "--group", name}}).status == 0);
    }
    family[0].process().send("collective_end");
    CHECK_THAT(family[1].tell("collective_end"), mentions("right "));
    CHECK_THAT(family[0].process().read_line(), mentions("ok right "));
    family.check_all_awake();
}
