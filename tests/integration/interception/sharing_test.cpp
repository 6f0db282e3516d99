// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that processes share by CUDA IPC or by descriptors: it sleeps if all of them do, and comes back to
// all of them.

#include "deep_family.hpp"

#include "support/byte_lock.hpp"
#include "support/catch.hpp"
#include "support/descriptor_message.hpp"
#include "support/files_of.hpp"
#include "support/sweep.hpp"
#include "support/tree.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <functional>
#include <iterator>
#include <sstream>
#include <thread>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

/// Two programs, of which each has opened memory of the other: "plain" by CUDA IPC, "shared" by a descriptor,
/// "shareable" by a pool.
struct Pair {
    explicit Pair(const std::string& kind = "plain", std::uint64_t each = k_piece_bytes,
                  Arguments variables = {})
        : family(2, std::move(variables)), bytes(each) {
        back = make_piece(taker, kind, bytes);
        given = make_piece(giver, kind, bytes);
        const auto open = [&](Host& owner, Host& other, const Piece& piece) {
            if (kind == "plain") return open_piece(other, owner.tell("share " + piece.number), bytes);
            if (kind == "shared") return import_piece(owner, other, piece, bytes);
            hand_pool_over(owner, other);
            return import_pointer(owner, other, piece, bytes);
        };
        opened = open(giver, taker, given);
        opened_back = open(taker, giver, back);
        taken = free_bytes(giver);
    }
    [[nodiscard]] Output command(const std::string& name, Arguments options = {}) const {
        return run(family.launch(name, with({DeepFamily::root(), "--tree"}, options)));
    }
    [[nodiscard]] Output command(Host& host, const std::string& name, Arguments options = {}) const {
        return run(family.launch(name, with({std::to_string(host.pid())}, options)));
    }
    void fall_asleep(Arguments options = {}) {
        REQUIRE(succeeded(command("gpu-sleep", std::move(options))));
        CHECK(family.states().asleep == 2);
    }
    void wake() {
        CHECK(succeeded(command("gpu-wake")));
        check();
    }
    /// All is awake and right, and it is one memory still.
    void check() {
        CHECK(family.states().awake == 2);
        CHECK(free_bytes(giver) == taken);
        CHECK(taker.tell("hash " + opened.number) == given.hash);
        CHECK(giver.tell("hash " + opened_back.number) == back.hash);
        given.hash = taker.tell("launch " + opened.number + " 3");
        check_intact(giver, given);
        back.hash = giver.tell("launch " + opened_back.number + " 7");
        check_intact(taker, back);
        for (auto* const host : {&giver, &taker}) check_no_harm(*host);
    }

    DeepFamily family;
    Host& giver = family[0];
    Host& taker = family[1];
    std::uint64_t bytes;
    Piece given, back, opened, opened_back;
    std::uint64_t taken = 0; ///< what is free while all is awake
};

/// A copy of the descriptor `number` of another process.
UniqueFd descriptor_of(pid_t pid, int number) {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
}

/// Gives a descriptor to the host, which imports it; the words of its answer.
std::vector<std::string> import_here(Host& host, const std::string& path, int descriptor,
                                     const std::string& how) {
    host.process().send(fmt::format("import {} {} {}", path, k_piece_bytes, how));
    send_descriptor(descriptor, path);
    std::istringstream answer(host.process().read_line());
    INFO(answer.str());
    std::string word;
    REQUIRE((answer >> word && word == "ok"));
    return {std::istream_iterator<std::string>(answer), {}};
}

} // namespace

TEST_CASE("Sharing: what processes share sleeps and wakes if all of them do", "[sharing]") {
    const auto [kind, bytes] =
        GENERATE(std::pair("plain", k_piece_bytes), std::pair("plain", k_in_common),
                 std::pair("shared", k_piece_bytes), std::pair("shareable", k_piece_bytes),
                 std::pair("shareable", k_in_common));
    Pair pair(kind, bytes);
    CHECK(pair.giver.report("sharers/0") == std::to_string(pair.taker.pid()));
    CHECK(pair.taker.report("sharers/0") == std::to_string(pair.giver.pid()));
    const auto figures = [&](Arguments options) {
        const auto done = pair.command("gpu-sleep", with({"--json"}, std::move(options)));
        REQUIRE(succeeded(done));
        return fmt::format("{}, kept {}", fmt::join(done.of_all("/report/devices/0/moved_bytes"), " "),
                           fmt::join(done.of_all("/report/devices/0/kept_bytes"), " "));
    };
    for (int round = 0; round < 2; ++round) {
        const auto expected = figures({"--dry-run"});
        CHECK(pair.giver.report("residual/0/kind") != "none"); // it was not done
        CHECK(figures({}) == expected);
        for (auto* const host : {&pair.giver, &pair.taker}) CHECK(host->report("residual/0/kind") == "none");
        CHECK(free_bytes(pair.giver) >= pair.taken + 2 * std::max<std::uint64_t>(pair.bytes, 2 << 20));
        pair.wake();
    }
    pair.taker.tell("free " + pair.opened.number);
    pair.giver.tell("free " + pair.given.number);
    pair.fall_asleep();
    if (kind != std::string("shared")) pair.giver.tell("free " + pair.opened_back.number);
    CHECK(succeeded(pair.command("gpu-wake")));
    check_intact(pair.taker, pair.back);
}

TEST_CASE("Sharing: deep sleeps need no more than that all take part", "[sharing]") {
    Pair pair(GENERATE("plain", "shared", "shareable"));
    const auto alone = pair.command(pair.giver, "gpu-sleep", {"--deep"});
    CHECK(alone.status == 1);
    CHECK_THAT(alone.err, mentions("it shares memory with other processes") && mentions("--tree"));
    CHECK_THAT(pair.command(pair.giver, "gpu-sleep", {"--deep", "--dry-run"}).out,
               mentions("would be refused"));
    CHECK_THAT(pair.command("gpu-sleep", {"--deep", "--dry-run"}).out, !mentions("would be refused"));
    pair.fall_asleep({"--deep"});
    CHECK(pair.family.states().deep == 2);
    pair.wake();
}

TEST_CASE("Sharing: memory that a process on another GPU has imported sleeps as well", "[sharing]") {
    DeepFamily family(2, {}, {"TEST_GPU=1"}); // the first one's
    const auto given = make_piece(family[0], "shared", k_piece_bytes);
    const auto back = make_piece(family[1], "shared", k_piece_bytes);
    const auto opened = import_piece(family[0], family[1], given, k_piece_bytes);
    const auto opened_back = import_piece(family[1], family[0], back, k_piece_bytes);
    for (int round = 0; round < 2; ++round) {
        CHECK(family.states_in(ended(run(family.deep()))).deep == 2);
        CHECK(succeeded(family.wake()));
        CHECK(family[1].tell("hash " + opened.number) == given.hash);
        CHECK(family[0].tell("launch " + opened_back.number + " 3") == family[1].tell("hash " + back.number));
    }
    for (std::size_t i = 0; i < family.size(); ++i) check_no_harm(family[i]);
}

TEST_CASE("Sharing: what is known to be with nobody else sleeps, as far as its descriptors tell",
          "[sharing]") {
    DeepFamily family(2);
    auto& giver = family[0];
    auto& taker = family[1];
    auto given = make_piece(giver, "shared", k_piece_bytes);
    const auto sleep = [&](
                           bool goes, Arguments options = {}, const std::function<void()>& asleep = [] {}) {
        const auto slept =
            run(family.launch("gpu-sleep", with({DeepFamily::root(), "--tree", "--json"}, options)));
        REQUIRE(succeeded(slept));
        if (!goes) CHECK_THAT(slept.out, mentions("a descriptor of them is open, or on its way"));
        CHECK((giver.report("residual/0/kind") == "none") == goes);
        asleep();
        CHECK(succeeded(run(family.launch("gpu-wake", {DeepFamily::root(), "--tree"}))));
        check_intact(giver, given);
    };
    const auto path = family.file("socket");
    const auto import = [&](Host& host, int descriptor, const std::string& how = {}) {
        return import_here(host, path, descriptor, how).front();
    };
    /// It is that memory, through and through.
    const auto check_imported = [&](Host& host, const std::string& number) {
        CHECK(host.tell("hash " + number) == given.hash);
        given.hash = host.tell("launch " + number + " 3");
        check_intact(giver, given);
    };
    const auto number = giver.tell("export " + given.number);
    auto exported = descriptor_of(giver.pid(), std::stoi(number));
    REQUIRE(exported);
    SECTION("its process keeps it, by which it is imported later") {
        static_cast<void>(import(taker, exported.get()));
        exported.reset();
        UniqueFd asleep;
        sleep(true, {}, [&] { asleep = descriptor_of(giver.pid(), std::stoi(number)); });
        check_imported(taker, import(taker, asleep.get()));
        asleep.reset();
        sleep(true, {"--deep"});
        exported = descriptor_of(giver.pid(), std::stoi(number));
        Host other(family.plain());
        check_imported(other, import(other, exported.get()));
    }
    SECTION("who has imported it keeps it") {
        giver.tell("close_descriptor " + number);
        const auto kept = import_here(taker, path, exported.get(), "keep").back();
        exported.reset();
        sleep(true, {"--deep"});
        exported = descriptor_of(taker.pid(), std::stoi(kept));
        check_imported(taker, import(taker, exported.get()));
        Host other(captured_launch(k_linked, family.plain().environment));
        check_imported(other, import(other, exported.get()));
    }
    SECTION("who has imported it has not mapped it yet, and may have nothing else") {
        giver.tell("close_descriptor " + number);
        if (GENERATE(false, true)) taker.tell("free 0");
        const auto handle = import(taker, exported.get(), "later");
        exported.reset();
        sleep(true);
        sleep(true, {"--deep"});
        check_imported(taker,
                       taker.tell(fmt::format("map_import {} {}", handle, k_piece_bytes)).substr(0, 1));
        sleep(true, {"--deep"});
    }
    SECTION("its owner ends, and who has imported it has not mapped it yet") {
        giver.tell("close_descriptor " + number);
        const auto handle = import(taker, exported.get(), "later");
        exported.reset();
        const auto command = [&](const char* name, Arguments options) {
            CHECK(succeeded(run(family.launch(name, std::move(options)))));
        };
        command("gpu-sleep", {DeepFamily::root(), "--tree"});
        giver.kill();
        command("gpu-wake", {std::to_string(taker.pid())});
        const auto mapped = taker.tell(fmt::format("map_import {} {}", handle, k_piece_bytes)).substr(0, 1);
        CHECK(taker.tell("hash " + mapped) == given.hash);
        command("gpu-sleep", {std::to_string(taker.pid()), "--deep"}); // it is its own
        command("gpu-wake", {std::to_string(taker.pid())});
        CHECK(taker.tell("hash " + mapped) == given.hash);
        CHECK(taker.report("residual/0/kind") == "none");
    }
    SECTION("its own process imports it") {
        static_cast<void>(import(taker, exported.get()));
        check_imported(giver, import(giver, exported.get()));
    }
    SECTION("children of who has an agent can have imported none") {
        static_cast<void>(import(taker, exported.get()));
        giver.tell("close_descriptor " + number);
        exported.reset();
        for (auto* const host : {&giver, &taker}) host->tell("fork stays");
        sleep(true);
    }
    SECTION("nobody has imported it yet") {
        giver.tell("close_descriptor " + number);
        exported.reset();
        sleep(false);
    }
    SECTION("one is with a process that has no agent, or on its way") {
        static_cast<void>(import(taker, exported.get()));
        sleep(false);
        std::array<int, 2> ends{};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
        const UniqueFd from(ends[0]), to(ends[1]);
        const DescriptorMessage sent(exported.get());
        REQUIRE(::sendmsg(from.get(), &sent.header, MSG_NOSIGNAL) == 1);
        exported.reset();
        sleep(false);
        DescriptorMessage received;
        REQUIRE(::recvmsg(to.get(), &received.header, MSG_CMSG_CLOEXEC) == 1);
        const auto arrived = received.received();
        check_imported(taker, import(taker, arrived.get()));
    }
    SECTION("a process without an agent has imported it") {
        Host other(family.plain());
        const auto there = import(other, exported.get());
        static_cast<void>(import(taker, exported.get()));
        exported.reset();
        sleep(false);
        check_imported(other, there);
        other.tell("end_slowly");
        sleep(true);
    }
}

TEST_CASE("Sharing: who sleeps alone leaves it on the GPU, as does a party that somebody is missing in",
          "[sharing]") {
    Pair pair;
    Host other(captured_launch(k_linked, pair.family.plain().environment));
    pair.taken -= k_context_bytes;
    const auto third = open_piece(other, pair.giver.tell("share " + pair.given.number), pair.bytes);
    const auto of_group = [&](const std::string& name, Arguments options) {
        return run(pair.family.launch(name, with({"--group", DeepFamily::group()}, options)));
    };
    CHECK(of_group("gpu-sleep", {"--deep"}).status == 1);
    CHECK(pair.family.states().awake == 2);
    const auto slept = of_group("gpu-sleep", {"--json"});
    REQUIRE(succeeded(slept));
    CHECK_THAT(slept.out,
               mentions(fmt::format("shared with process {}, which keeps them there", other.pid())));
    CHECK(pair.giver.report("residual/0/kind") == "ipc");
    CHECK(other.tell("hash " + third.number) == pair.given.hash);
    pair.given.hash = other.tell("launch " + third.number + " 5");
    CHECK(succeeded(of_group("gpu-wake", {})));
    pair.check();
}

TEST_CASE("Sharing: what nobody else has any more sleeps as its owner does, alone", "[sharing]") {
    Pair pair(GENERATE("plain", "shareable"));
    const bool is_deep = GENERATE(false, true);
    pair.giver.tell("free " + pair.opened_back.number);
    CHECK_THAT(pair.command(pair.giver, "gpu-sleep", {"--deep", "--dry-run"}).out,
               mentions("would be refused"));
    if (GENERATE(false, true))
        pair.taker.kill();
    else
        pair.taker.tell("free " + pair.opened.number);
    REQUIRE(succeeded(pair.command(pair.giver, "gpu-sleep", is_deep ? Arguments{"--deep"} : Arguments())));
    CHECK(pair.giver.report("residual/0/kind") == "none");
    CHECK(succeeded(pair.command(pair.giver, "gpu-wake")));
    check_intact(pair.giver, pair.given);
    check_no_harm(pair.giver);
}

TEST_CASE("Sharing: who has opened it wakes with its owner, or says so", "[sharing]") {
    Pair pair;
    pair.giver.tell("free " + pair.opened_back.number);
    pair.taken = free_bytes(pair.giver);
    pair.fall_asleep({"--on-touch", "wake"});
    SECTION("refused") {
        const auto woken = pair.command(pair.taker, "gpu-wake");
        CHECK(woken.status == 7);
        CHECK_THAT(woken.err, mentions(std::to_string(pair.giver.pid())) && mentions("--with-sharers"));
        CHECK(pair.family.states().asleep == 2);
    }
    SECTION("refused, of a tree that its owner is not of") {
        const auto start = Clock::now();
        const auto woken = pair.command(pair.taker, "gpu-wake", {"--tree"});
        CHECK(Clock::now() - start < Milliseconds(10'000));
        CHECK(woken.status == 7);
        CHECK_THAT(woken.err, mentions(fmt::format("process {} (intercepted_pro)", pair.giver.pid())) &&
                                  mentions("--with-sharers") && mentions("--tree"));
        CHECK(pair.family.states().asleep == 2);
    }
    SECTION("with it, of a tree that it is not of") {
        CHECK(succeeded(pair.command(pair.taker, "gpu-wake", {"--tree", "--with-sharers"})));
        CHECK(pair.family.states().awake == 2);
    }
    SECTION("with it") {
        CHECK(succeeded(pair.command(pair.taker, "gpu-wake", {"--with-sharers"})));
        CHECK(pair.family.states().awake == 2);
    }
    SECTION("by a touch") {
        CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
        CHECK(pair.family.states().awake == 2);
    }
    SECTION("after it, which has changed it") {
        CHECK(succeeded(pair.command(pair.giver, "gpu-wake")));
        pair.given.hash = pair.giver.tell("launch " + pair.given.number + " 5");
        CHECK(succeeded(pair.command(pair.taker, "gpu-wake")));
    }
    CHECK(succeeded(pair.command("gpu-wake")));
    CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
    check_intact(pair.giver, pair.given);
    check_intact(pair.taker, pair.back);
}

TEST_CASE("Sharing: it is one memory also where its owner lets it sleep no more", "[sharing]") {
    Pair pair("shared");
    pair.giver.tell("free " + pair.opened_back.number);
    pair.fall_asleep();
    CHECK(succeeded(pair.command(pair.giver, "gpu-wake")));
    pair.giver.tell("multicast " + pair.given.number);
    CHECK(succeeded(pair.command(pair.taker, "gpu-wake")));
    pair.given.hash = pair.taker.tell("launch " + pair.opened.number + " 3");
    check_intact(pair.giver, pair.given);
}

TEST_CASE("Sharing: a wake by tags leaves asleep what is shared under others", "[sharing]") {
    Pair pair(GENERATE("plain", "shared"), k_piece_bytes, {"GPU_SLEEP_RULES=min=12MiB,tag=large"});
    const auto large = make_piece(pair.giver, "plain", 3 * k_piece_bytes);
    static_cast<void>(make_piece(pair.taker, "plain", 3 * k_piece_bytes));
    pair.taken = free_bytes(pair.giver);
    pair.fall_asleep();
    CHECK(succeeded(pair.command("gpu-wake", {"--tags", "large"})));
    for (auto* const host : {&pair.giver, &pair.taker})
        CHECK(host->report("tags/0/state tags/1/state") == "asleep awake");
    pair.wake();
    check_intact(pair.giver, large);
}

TEST_CASE("Sharing: a kept file is good for all that sleeps in it, whatever has woken", "[sharing]") {
    Pair pair;
    pair.giver.tell("free " + pair.opened_back.number);
    pair.fall_asleep({"--store", "file", "--dir", pair.family.file("kept"), "--keep-files"});
    CHECK(succeeded(pair.command(pair.taker, "gpu-wake", {"--tags", "default"}))); // but what it shares
    SECTION("which moves to host memory") {
        CHECK(succeeded(pair.command(pair.taker, "gpu-sleep", {"--store", "host"})));
        CHECK(succeeded(pair.command("gpu-wake")));
    }
    SECTION("whose owner ends") {
        pair.giver.kill();
        CHECK(succeeded(pair.command(pair.taker, "gpu-wake")));
    }
    CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
    check_intact(pair.taker, pair.back);
}

TEST_CASE("Sharing: callbacks hear of what wakes, though its owner does not bring back the rest",
          "[sharing]") {
    Pair pair("plain", 3 * k_piece_bytes, {"GPU_SLEEP_RULES=min=12MiB,tag=large"});
    pair.giver.tell("free " + pair.opened_back.number);
    pair.taker.tell("free 0"); // its only one of that tag
    pair.taker.tell("callbacks");
    const auto files = pair.family.file("files");
    pair.fall_asleep({"--store", "large=file", "--dir", files});
    const auto spoil = [&] {
        for (const auto& file : files_in(files))
            if (file.native().find(fmt::format("-{}-", pair.giver.pid())) != std::string::npos)
                turn_a_bit(file);
    };
    spoil();
    static_cast<void>(pair.taker.tell("told"));
    const auto wake = [&](int status) {
        const auto woken = pair.command(pair.taker, "gpu-wake", {"--with-sharers", "--timeout", "500ms"});
        CHECK(woken.status == status);
        return pair.taker.tell("told");
    };
    CHECK(wake(7) == " level 0 deep 0, large 0");
    spoil();                // it is right again
    CHECK(wake(0).empty()); // what others have is not the program's own to hear of
    CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
}

TEST_CASE("Sharing: its contents outlive its owner", "[sharing]") {
    const auto [kind, is_deep] =
        GENERATE(std::pair("plain", false), std::pair("plain", true), std::pair("shareable", true));
    Pair pair(kind);
    pair.fall_asleep(is_deep ? Arguments{"--deep"} : Arguments{});
    const bool woke = GENERATE(false, true);
    if (woke) {
        CHECK(succeeded(pair.command(pair.giver, "gpu-wake", {"--with-sharers"})));
        pair.fall_asleep();
    }
    CHECK(succeeded(pair.command("gpu-wake", {"--dry-run"})));
    pair.giver.kill();
    CHECK(succeeded(pair.command(pair.taker, "gpu-wake")));
    CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
    check_intact(pair.taker, pair.back);
    CHECK(succeeded(pair.command(pair.taker, "gpu-sleep"))); // it is its own now
    CHECK(pair.taker.report("residual/0/kind") == "none");   // as is what that one alone had opened
    CHECK(succeeded(pair.command(pair.taker, "gpu-wake")));
    CHECK(succeeded(pair.command("gpu-sleep", {"--deep"}))); // of all that are left
    CHECK(succeeded(pair.command("gpu-wake")));
    CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
    pair.taker.tell("free " + pair.opened.number);
}

TEST_CASE("Sharing: what an owner that has ended left sleeps once one process alone has it", "[sharing]") {
    const auto* const kind = GENERATE("plain", "shared");
    const bool is_deep = GENERATE(false, true);
    DeepFamily family(2);
    auto& giver = family[0];
    auto& taker = family[1];
    const auto given = make_piece(giver, kind, k_piece_bytes);
    const auto opened = kind == std::string("plain")
                            ? open_piece(taker, giver.tell("share " + given.number), k_piece_bytes)
                            : import_piece(giver, taker, given, k_piece_bytes);
    giver.kill();
    Host watcher(family.plain());
    watcher.tell("start");
    const auto taken = free_bytes(watcher);
    const auto pid = std::to_string(taker.pid());
    const auto options = is_deep ? Arguments{pid, "--deep"} : Arguments{pid};
    const auto command = [&](const char* name, Arguments arguments) {
        return ended(run(family.launch(name, std::move(arguments)))).out;
    };
    // Processes of other tests may be stopped, and not answer.
    REQUIRE(becomes_true(
        [&] { return run(family.launch("gpu-sleep", with(options, {"--dry-run"}))).status == 0; }));
    for (int round = 0; round < 2; ++round) {
        REQUIRE(becomes_true([&] {
            return run(family.launch("gpu-sleep", options)).status == 0 &&
                   taker.report("residual/0/kind") == "none";
        }));
        CHECK(free_bytes(watcher) >= taken + 2 * k_piece_bytes);
        command("gpu-wake", {pid});
        CHECK(taker.tell("hash " + opened.number) == given.hash);
    }
    CHECK(taker.tell("launch " + opened.number + " 3") != given.hash);
    taker.tell("free " + opened.number);
    CHECK(free_bytes(watcher) >= taken + k_piece_bytes);
    check_no_harm(taker);
}

TEST_CASE("Sharing: what an owner that has ended left stays while others have it, and says so", "[sharing]") {
    DeepFamily family(3);
    auto& taker = family[1];
    auto& other = family[2];
    const auto sleep = [&](Arguments options = {}) {
        return run(family.launch("gpu-sleep", with({std::to_string(taker.pid())}, std::move(options))));
    };
    const auto check_goes = [&](const std::string& number, const std::string& hash) {
        REQUIRE(becomes_true([&] { return sleep({"--deep"}).status == 0; }));
        CHECK(taker.report("residual/0/kind") == "none");
        CHECK(succeeded(run(family.launch("gpu-wake", {std::to_string(taker.pid())}))));
        CHECK(taker.tell("hash " + number) == hash);
    };
    SECTION("by CUDA IPC") {
        const auto given = make_piece(family[0], "plain", k_piece_bytes);
        const auto handle = family[0].tell("share " + given.number);
        const auto opened = open_piece(taker, handle, k_piece_bytes);
        const auto others = open_piece(other, handle, k_piece_bytes);
        family[0].kill();
        const auto alone = sleep({"--deep"});
        CHECK(alone.status == 1);
        CHECK_THAT(alone.err, mentions(fmt::format("shared with process {}", other.pid())));
        const auto together = run(family.launch("gpu-sleep", {DeepFamily::root(), "--tree", "--json"}));
        REQUIRE(succeeded(together));
        CHECK_THAT(together.out,
                   mentions(fmt::format("shared with process {}, which keeps them there", other.pid())));
        CHECK(succeeded(run(family.launch("gpu-wake", {DeepFamily::root(), "--tree"}))));
        CHECK(taker.tell("launch " + opened.number + " 3") == other.tell("hash " + others.number));
        const auto hash = other.tell("hash " + others.number);
        if (GENERATE(false, true))
            other.kill();
        else
            other.tell("free " + others.number);
        check_goes(opened.number, hash);
    }
    SECTION("by CUDA IPC, of a range that other allocations lie in") {
        const auto first = make_piece(family[0], "plain", k_in_common);
        const auto next = make_piece(family[0], "plain", k_in_common);
        const auto opened = open_piece(taker, family[0].tell("share " + first.number), k_in_common);
        static_cast<void>(open_piece(taker, family[0].tell("share " + next.number), k_in_common));
        family[0].kill();
        CHECK_THAT(sleep({"--deep"}).err, mentions("lie beside what it shared"));
        REQUIRE(succeeded(sleep()));
        CHECK(taker.report("residual/0/kind") == "ipc");
        CHECK(succeeded(run(family.launch("gpu-wake", {std::to_string(taker.pid())}))));
        CHECK(taker.tell("hash " + opened.number) == first.hash);
    }
    SECTION("by descriptors, of which one is on its way, and the process itself keeps one") {
        const auto given = make_piece(family[0], "shared", k_piece_bytes);
        const auto path = family.file("socket");
        auto exported = descriptor_of(family[0].pid(), std::stoi(family[0].tell("export " + given.number)));
        const auto imported = import_here(taker, path, exported.get(), "keep");
        family[0].kill();
        CHECK_THAT(sleep({"--deep"}).err, mentions("a descriptor of them is open, or on its way"));
        CHECK(taker.report("residual/0/kind") == "shared");
        exported.reset();
        check_goes(imported.front(), given.hash);
    }
    SECTION("by a descriptor that the process has imported twice") {
        const auto given = make_piece(family[0], "shared", k_piece_bytes);
        auto exported = descriptor_of(family[0].pid(), std::stoi(family[0].tell("export " + given.number)));
        const auto path = family.file("socket");
        const auto first = import_here(taker, path, exported.get(), {}).front();
        const auto second = import_here(taker, path, exported.get(), {}).front();
        exported.reset();
        family[0].kill();
        CHECK(sleep({"--deep"}).status == 1);
        CHECK(succeeded(sleep()));
        CHECK(taker.report("residual/0/kind") == "shared");
        CHECK(succeeded(run(family.launch("gpu-wake", {std::to_string(taker.pid())}))));
        CHECK(taker.tell("launch " + first + " 3") == taker.tell("hash " + second));
    }
    SECTION("by a descriptor, which was not mapped yet") {
        const auto given = make_piece(family[0], "shared", k_piece_bytes);
        const auto path = family.file("socket");
        auto exported = descriptor_of(family[0].pid(), std::stoi(family[0].tell("export " + given.number)));
        const auto handle = import_here(taker, path, exported.get(), "later").front();
        exported.reset();
        family[0].kill();
        REQUIRE(becomes_true([&] { return sleep({"--deep"}).status == 0; }));
        CHECK(succeeded(run(family.launch("gpu-wake", {std::to_string(taker.pid())}))));
        const auto mapped = taker.tell(fmt::format("map_import {} {}", handle, k_piece_bytes)).substr(0, 1);
        CHECK(taker.tell("hash " + mapped) == given.hash);
    }
}

TEST_CASE("Sharing: who else had it is told that it is shared no more once its owner has ended",
          "[sharing]") {
    DeepFamily family(3);
    const auto given = make_piece(family[0], "plain", k_piece_bytes);
    const auto handle = family[0].tell("share " + given.number);
    std::vector<Piece> opened;
    for (std::size_t i : {1, 2}) opened.push_back(open_piece(family[i], handle, k_piece_bytes));
    const auto command = [&](const char* name, Arguments options) {
        return ended(run(family.launch(name, std::move(options)))).out;
    };
    command("gpu-sleep", {DeepFamily::root(), "--tree"});
    family[0].kill();
    const auto wake = [&](std::size_t i) {
        const auto said = command("gpu-wake", {std::to_string(family[i].pid())});
        CHECK(family[i].tell("hash " + opened[i - 1].number) == given.hash);
        return said;
    };
    CHECK_THAT(wake(1), !mentions("shared no more"));
    CHECK_THAT(wake(2), mentions("shared no more"));
}

TEST_CASE("Sharing: what another device has as well stays, whoever else goes to sleep", "[sharing]") {
    Pair pair;
    const bool is_owner = GENERATE(true, false);
    auto& host = is_owner ? pair.giver : pair.taker;
    auto& other = is_owner ? pair.taker : pair.giver;
    host.tell("synchronous " +
              (is_owner ? pair.given : pair.opened).number); // as before a network card has it
    CHECK(pair.command("gpu-sleep", {"--deep"}).status == 1);
    CHECK(succeeded(pair.command("gpu-sleep")));
    CHECK_THAT(host.report("residual/0/reason residual/1/reason"),
               mentions("registered with another device"));
    CHECK(other.report("residual/0/kind") == "ipc");
    CHECK(succeeded(pair.command("gpu-wake")));
    pair.check();
}

TEST_CASE("Sharing: it stays one memory, whenever the command is killed", "[sharing]") {
    const bool is_wake = GENERATE(false, true);
    Pair pair;
    for (int i = 0; i < 12; ++i) {
        INFO("killed after " << 8 * i << " ms, " << (is_wake ? "waking" : "falling asleep"));
        if (is_wake) pair.fall_asleep();
        Process command(
            pair.family.launch(is_wake ? "gpu-wake" : "gpu-sleep", {DeepFamily::root(), "--tree"}));
        std::this_thread::sleep_for(Milliseconds(8 * i));
        command.signal(SIGKILL);
        static_cast<void>(command.finish());
        pair.fall_asleep(); // waits for what is under way
        pair.wake();
    }
}

TEST_CASE("Sharing: whenever one of them is killed, the other has all of its bytes", "[sharing]") {
    const bool is_wake = GENERATE(false, true);
    const bool is_giver = GENERATE(false, true);
    for (int i = 0; i < 8; ++i) {
        Pair pair;
        INFO((is_giver ? "the owner" : "the other")
             << " killed after " << 6 * i << " ms, " << (is_wake ? "waking" : "falling asleep"));
        if (is_wake) pair.fall_asleep();
        Process command(
            pair.family.launch(is_wake ? "gpu-wake" : "gpu-sleep", {DeepFamily::root(), "--tree"}));
        std::this_thread::sleep_for(Milliseconds(6 * i));
        (is_giver ? pair.giver : pair.taker).kill();
        static_cast<void>(command.finish());
        auto& left = is_giver ? pair.taker : pair.giver;
        CHECK(succeeded(pair.command(left, "gpu-sleep"))); // what is under way completes it
        CHECK(succeeded(pair.command(left, "gpu-wake")));
        check_intact(left, is_giver ? pair.back : pair.given);
        CHECK(left.tell("hash " + (is_giver ? pair.opened : pair.opened_back).number) ==
              (is_giver ? pair.given : pair.back).hash);
        check_no_harm(left);
    }
}

TEST_CASE("Sharing: without descriptors nothing is lost, and what cannot be opened again waits",
          "[sharing]") {
    Pair pair(GENERATE("plain", "shared"));
    auto& host = GENERATE(false, true) ? pair.giver : pair.taker;
    host.tell("descriptors used");
    const auto slept = pair.command("gpu-sleep");
    host.tell("descriptors left");
    if (slept.status != 0) CHECK(pair.family.states().awake == 2);
    pair.fall_asleep();
    host.tell("descriptors used");
    const auto woken = pair.command("gpu-wake");
    host.tell("descriptors left");
    if (woken.status != 0) CHECK(pair.family.states().asleep == 2);
    pair.wake();
}

TEST_CASE("Sharing: a descriptor that only claims to be of another's memory opens none", "[sharing]") {
    Pair pair("shared");
    const UniqueFd made(::memfd_create("claims", MFD_CLOEXEC));
    REQUIRE(::ftruncate(made.get(), k_piece_bytes) == 0);
    auto lock = byte_lock(F_RDLCK, 4711);
    REQUIRE(::fcntl(made.get(), F_SETOWN, pair.giver.pid()) == 0);
    REQUIRE(::fcntl(made.get(), F_OFD_SETLK, &lock) == 0);
    const auto path = pair.family.file("socket");
    const auto open_files = [&] { return files_in(fmt::format("/proc/{}/fd", pair.taker.pid())).size(); };
    const auto before = open_files();
    pair.taker.process().send(fmt::format("import {} {}", path, k_piece_bytes));
    send_descriptor(made.get(), path);
    CHECK_THAT(pair.taker.process().read_line(), mentions("cuMemImportFromShareableHandle"));
    CHECK(open_files() == before);
    pair.fall_asleep();
    pair.wake();
}

TEST_CASE("Sharing: what its owner changed before it ended is reported as lost", "[sharing]") {
    Pair pair;
    pair.giver.tell("free " + pair.opened_back.number);
    pair.fall_asleep();
    CHECK(succeeded(pair.command(pair.giver, "gpu-wake")));
    pair.giver.tell("launch " + pair.given.number + " 5");
    pair.giver.kill();
    const auto woken = pair.command(pair.taker, "gpu-wake", {"--json"});
    CHECK(succeeded(woken));
    CHECK_THAT(woken.out, mentions("are zero: process"));
    CHECK(pair.taker.tell("hash " + pair.opened.number) != pair.given.hash);
    check_intact(pair.taker, pair.back);
}

TEST_CASE("Sharing: a child that is forked in a wake keeps no descriptor of what comes back", "[sharing]") {
    // By which the simulated driver knows that a descriptor of memory is left.
    constexpr auto* k_driver_lock = "4611686018427387904 4611686018427387904";
    Pair pair(GENERATE("plain", "shared"));
    pair.giver.tell("free " +
                    pair.opened_back.number); // or the taker would hold descriptors of its own to send
    pair.fall_asleep();
    pair.taker.tell("delay cuMemMap 200");
    Process wake(pair.family.launch("gpu-wake", {DeepFamily::root(), "--tree"}));
    bool was_seen = false;
    const auto has_any = [&](pid_t pid) {
        const auto files = files_in(fmt::format("/proc/{}/fdinfo", pid));
        return std::any_of(files.begin(), files.end(), [&](const auto& file) {
            return content_of(file).find(k_driver_lock) != std::string::npos;
        });
    };
    while (pair.family.states().awake != 2) {
        if (!has_any(pair.taker.pid())) continue;
        was_seen = true;
        pair.taker.tell("fork stays");
    }
    CHECK(was_seen);
    CHECK(wake.finish().status == 0);
    std::istringstream children(content_of(fmt::format("/proc/{0}/task/{0}/children", pair.taker.pid())));
    const std::vector<pid_t> forked{std::istream_iterator<pid_t>(children), {}};
    CHECK_FALSE(forked.empty());
    CHECK(becomes_true([&] { return std::none_of(forked.begin(), forked.end(), has_any); }));
}

TEST_CASE("Sharing: who opens what sleeps waits until it is awake, and wakes it", "[sharing]") {
    Pair pair;
    const auto handle = pair.giver.tell("share " + pair.given.number);
    pair.fall_asleep();
    Host late(captured_launch(k_linked, pair.family.plain().environment));
    const auto opened = open_piece(late, handle, pair.bytes);
    CHECK(opened.hash == pair.given.hash);
    CHECK(succeeded(pair.command("gpu-wake")));
    CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
}

TEST_CASE("Sharing: who waits to open memory of a sleeper can sleep meanwhile", "[sharing]") {
    Pair pair;
    pair.giver.tell("free " + pair.opened_back.number);
    const auto handle = pair.giver.tell("share " + pair.given.number);
    pair.fall_asleep({"--on-touch", "wait"});
    Host late(captured_launch(k_linked, pair.family.plain().environment));
    late.tell("start");
    constexpr auto k_granule = std::uint64_t{2} << 20;
    static_cast<void>(make_piece(late, "plain", (free_bytes(late) - k_piece_bytes) / k_granule * k_granule));
    late.process().send(fmt::format("open {} {}", handle, pair.bytes)); // for which its owner has no room
    pause_for(Milliseconds(100));
    CHECK(succeeded(pair.command(late, "gpu-sleep")));
    CHECK(succeeded(pair.command(pair.giver, "gpu-wake")));
    late.kill();
}

TEST_CASE("Sharing: a constructor that waits for memory keeps nobody from sleeping together", "[sharing]") {
    DeepFamily family(2, {"GPU_SLEEP_RULES=min=12MiB,tag=large;any"});
    auto& host = family[0];
    const auto large = make_piece(host, "plain", 3 * k_piece_bytes);
    const auto succeeds = [&](const char* command, Arguments arguments) {
        CHECK(succeeded(run(family.launch(command, std::move(arguments)))));
    };
    succeeds("gpu-sleep", {std::to_string(host.pid()), "--tags", "large"});
    host.process().send("load " + library_file("libsafety_constructor.so"));
    REQUIRE(becomes_true([&] { return host.report("gate/waiting_threads") == "1"; }));
    for (const char* const command : {"gpu-sleep", "gpu-wake"})
        succeeds(command, {DeepFamily::root(), "--tree"});
    CHECK(host.process().read_line().starts_with("ok"));
    check_intact(host, large);
}

TEST_CASE("Sharing: who runs another program has no memory any more", "[sharing]") {
    Pair pair;
    pair.giver.tell("free " + pair.opened_back.number);
    const auto becomes_another = [](Host& host) {
        host.process().send("exec");
        const auto name = fmt::format("/proc/{}/comm", host.pid());
        REQUIRE(becomes_true([&] { return content_of(name) == "sleep\n"; }));
    };
    SECTION("its owner") {
        pair.fall_asleep();
        becomes_another(pair.giver);
        CHECK(succeeded(pair.command(pair.taker, "gpu-wake")));
        CHECK(pair.taker.tell("hash " + pair.opened.number) == pair.given.hash);
        pair.giver.kill();
    }
    SECTION("who has opened it") {
        becomes_another(pair.taker);
        CHECK(succeeded(pair.command(pair.giver, "gpu-sleep")));
        CHECK(pair.giver.report("residual/0/kind") == "none");
        CHECK(succeeded(pair.command(pair.giver, "gpu-wake")));
        check_intact(pair.giver, pair.given);
        pair.taker.kill();
    }
}

TEST_CASE("Sharing: whatever call of whomever fails, all sleep or all are awake", "[sharing]") {
    const bool is_wake = GENERATE(false, true);
    const bool is_giver = GENERATE(false, true);
    const auto* const kind = GENERATE("plain", "shared", "shareable");
    Pair pair(kind);
    if (kind == std::string("shared")) { // and both keep a descriptor, and one a handle without a mapping
        const auto number = pair.giver.tell("export " + pair.given.number);
        const auto exported = descriptor_of(pair.giver.pid(), std::stoi(number));
        for (const auto* const how : {"keep", "later"})
            import_here(pair.taker, pair.family.file("socket"), exported.get(), how);
        pair.taken = free_bytes(pair.giver);
    }
    auto& host = is_giver ? pair.giver : pair.taker;
    std::string failed = "0 ";
    const auto step = [&](int call) {
        INFO(kind << (is_giver ? ": the owner" : ": the other")
                  << (is_wake ? ", waking" : ", falling asleep"));
        if (is_wake) pair.fall_asleep();
        host.tell(fmt::format("fail {}", call));
        static_cast<void>(pair.command(is_wake ? "gpu-wake" : "gpu-sleep"));
        const bool is_end = failed == std::exchange(failed, host.tell("fail"));
        INFO("failed: " << failed);
        const auto states = pair.family.states();
        CHECK((states.asleep == 2 || states.awake == 2));
        if (states.asleep == 2) pair.wake(); // perhaps the driver has not released all
        pair.fall_asleep();
        pair.wake();
        return !is_end;
    };
    for_each_call(step,
                  (is_wake ? 1U : 0U) + (is_giver ? 2U : 0U) + (kind == std::string("plain") ? 4U : 0U));
}
