// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Peers that misbehave, commands that come in each other's way, and processes that are killed in the middle.

#include "peer.hpp"

using namespace gpu_sleep::test;

namespace {

/// The agent's last word, or an empty optional when it closed without one. What came before it goes to
/// `progress`.
std::optional<protocol::Reply> last_word(Peer& peer, std::vector<model::Progress>* progress = nullptr) {
    for (;;) {
        auto reply = peer.next();
        const auto* told = reply ? std::get_if<model::Progress>(&*reply) : nullptr;
        if (!told) return reply;
        if (progress) progress->push_back(*told);
    }
}

/// The code of the failure that the agent answers with.
std::optional<ErrorCode> refusal(Peer& peer) {
    const auto reply = last_word(peer);
    const auto* failure = reply ? std::get_if<model::Failure>(&*reply) : nullptr;
    return failure ? std::optional(failure->error.code) : std::nullopt;
}

std::vector<std::byte> status_frame() {
    return *protocol::encode(protocol::Request(model::StatusRequest{}));
}

std::vector<std::byte> sleep_frame() {
    model::SleepRequest request;
    request.timeout = k_patience; // any field that is sent
    return *protocol::encode(protocol::Request(request));
}

/// Starts a command and kills it after `time`.
void start_and_kill(const Host& host, const std::string& name, Milliseconds time) {
    const auto command = host.start(name);
    pause_for(time);
}

/// Several tags, so that a sleep and a wake consist of several copies.
void allocate_tags(Host& host) {
    for (int i = 0; i < 6; ++i) host.tell(fmt::format("alloc tag_{} 2097152 0", i));
}

} // namespace

TEST_CASE("Bad input: what is no message is refused and does no harm", "[quick][bad_input]") {
    LoadedHost host;
    SECTION("garbage") {
        std::vector<std::byte> garbage(5000);
        for (std::size_t i = 0; i < garbage.size(); ++i) garbage[i] = static_cast<std::byte>(i * 37 + 11);
        Peer peer(host);
        peer.send(garbage);
        CHECK(refusal(peer) == ErrorCode::protocol_mismatch);
    }
    SECTION("a bit that flipped") {
        auto frame = sleep_frame();
        frame[16] ^= std::byte{0x40};
        Peer peer(host);
        peer.send(frame);
        CHECK(refusal(peer) == ErrorCode::invalid_argument);
    }
    host.check_unharmed();
}

TEST_CASE("Bad input: a request cut at any byte does nothing", "[quick][bad_input]") {
    LoadedHost host;
    const auto frame = sleep_frame();
    for (std::size_t length = 0; length < frame.size(); ++length) {
        const Peer peer(host);
        peer.send(std::span(frame).first(length));
    }
    host.check_unharmed();
}

TEST_CASE("Bad input: silent connections keep nobody out", "[bad_input]") {
    LoadedHost host;
    std::vector<Peer> silent;
    for (int i = 0; i < 200; ++i) silent.emplace_back(host);
    host.check_unharmed();
}

TEST_CASE("Bad input: a peer that leaves before its answer does no harm", "[bad_input]") {
    LoadedHost host;
    for (int i = 0; i < 20; ++i) Peer(host).send(status_frame());
    host.check_unharmed();
}

TEST_CASE("Bad input: a command killed while contents are copied leaves all awake", "[quick][bad_input]") {
    Host host({"GPU_SLEEP_SIM_POISON=0"});
    allocate_tags(host);
    host.tell("alloc_many bulk 1 67108864"); // so much is copied between two looks at the command
    host.tell("delay cuMemcpyDtoHAsync 500000");
    start_and_kill(host, "gpu-sleep", Milliseconds(150));
    host.tell("delay cuMemcpyDtoHAsync 0");
    host.check_unharmed();
}

TEST_CASE("Bad input: a request behind another ends in its own time, or with its command", "[bad_input]") {
    Host host;
    allocate_tags(host);
    host.tell("hold");
    auto first = host.start("gpu-sleep", {"--tags", "tag_0", "--timeout", "20s"});
    await_request(first);
    SECTION("timed out") {
        const auto* const command = GENERATE("gpu-sleep", "gpu-wake");
        const auto start = Clock::now();
        check_ended(host.command(command, {"--tags", "tag_1", "--timeout", "300ms"}), 4,
                    mentions("still under way"));
        CHECK(Clock::now() - start < Milliseconds(5'000));
    }
    SECTION("killed") {
        const auto killed = host.start("gpu-sleep", {"--tags", "tag_1", "--timeout", "20s"});
        await_request(killed);
    }
    host.tell("resume");
    CHECK(first.finish().status == 0);
    pause_for(Milliseconds(300));
    CHECK(host.state() == "partial");
    CHECK_THAT(host.command("gpu-sleep", {"--tags", "tag_1"}).out, !mentions("nothing to do"));
    REQUIRE(host.command("gpu-wake").status == 0);
    host.check_unharmed();
}

TEST_CASE("Bad input: gpu-ps does not wait for a sleep, and tells how the process was", "[bad_input]") {
    Host host;
    allocate_tags(host);
    host.tell("delay cuMemcpyDtoHAsync 1000000");
    auto sleeping = host.start("gpu-sleep", {"--json"});
    Output listed;
    CHECK(becomes_true([&] {
        listed = host.command("gpu-ps", {"--json"});
        return listed.out.find("contents are being moved") != std::string::npos;
    }));
    CHECK(listed.status == 0);
    CHECK(listed.json("/processes/0/state /processes/0/report/tags/5/tag") == "awake tag_5");
    CHECK(sleeping.finish().json("/processes/0/report/changed") == "true");
    CHECK(host.state() == "asleep");
}

TEST_CASE("Bad input: a process that is stopped answers nobody, and the command says so", "[bad_input]") {
    LoadedHost host;
    host.tell("alloc kv_cache 4194304 0");
    host.process().signal(SIGSTOP);
    const auto* const how_long = " so far";
    CHECK_THAT(host.command("gpu-ps").err, mentions("last known state: awake") && !mentions(how_long));
    host.process().signal(SIGCONT);
    REQUIRE(host.command("gpu-sleep", {"--tags", "kv_cache"}).status == 0);
    host.process().signal(SIGSTOP);
    const auto begun = Clock::now();
    const auto asked = host.command("gpu-ps");
    const auto woken = host.command("gpu-wake");
    CHECK(Clock::now() - begun < std::chrono::seconds(4)); // of 5 and 30 that others are given
    CHECK(asked.status == 0);                              // it has said how it is
    CHECK_THAT(asked.out, mentions("stopped, partly asleep"));
    const auto* const before = "last known state: partly asleep";
    CHECK(woken.status == 4);
    CHECK_THAT(woken.err,
               mentions("it is stopped") && mentions("kill -CONT") && mentions(before) && mentions(how_long));
    host.process().signal(SIGCONT);
    REQUIRE(std::filesystem::remove(socket_file(host.pid())));
    REQUIRE(becomes_true([&] { return host.state() == "partial"; }));
    host.process().signal(SIGSTOP); // what it has written lies beside the new socket, too
    CHECK_THAT(host.command("gpu-wake").err, mentions(before) && mentions(how_long));
    host.process().signal(SIGCONT);
    REQUIRE(host.command("gpu-wake").status == 0);
    host.check_unharmed();
}

TEST_CASE("Bad input: a peer that does not read hears of the point of no return too", "[bad_input]") {
    Host host;
    allocate_tags(host);
    host.tell("spin 6000"); // for so much progress that it is not sent any more
    Peer peer(host);
    peer.send(sleep_frame());
    REQUIRE(becomes_true([&] { return host.state() == "asleep"; }));
    std::vector<model::Progress> progress;
    CHECK(std::holds_alternative<model::Report>(need(last_word(peer, &progress))));
    REQUIRE(progress.size() > 10);
    CHECK(progress.back().phase == model::Progress::Phase::release);
    CHECK(host.command("gpu-wake").status == 0);
    host.check_unharmed();
}
