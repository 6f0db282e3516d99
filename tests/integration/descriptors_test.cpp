// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs that have used up their descriptors, and the places in /tmp that the agent makes and leaves.

#include "base/process.hpp"
#include "empty_tmp.hpp"
#include "peer.hpp"
#include "place.hpp"

#include <sys/resource.h>

using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

/// While it lives, the host has no descriptor left.
class AllUsed : NotCopied {
public:
    explicit AllUsed(Host& host) : host_(host) {
        constexpr rlim_t k_few = 64;
        REQUIRE(::prlimit(host_.pid(), RLIMIT_NOFILE, nullptr, &before_) == 0);
        const rlimit limit{k_few, before_.rlim_max};
        REQUIRE(::prlimit(host_.pid(), RLIMIT_NOFILE, &limit, nullptr) == 0);
        host_.tell("use_descriptors");
        pause_for(Milliseconds(200)); // the last command's connection is closed after its answer
        host_.tell("use_descriptors");
    }
    ~AllUsed() {
        ::prlimit(host_.pid(), RLIMIT_NOFILE, &before_, nullptr);
        host_.tell("leave_descriptors");
    }

private:
    Host& host_;
    rlimit before_{};
};

/// What the process has in the place of standard input, output and error, but for what fills these numbers
/// for a moment.
std::vector<std::string> standard_descriptors(pid_t process) {
    std::vector<std::string> found;
    const auto are_free = [&] {
        found.clear();
        for (int number = 0; number < k_first_own_number; ++number) {
            std::error_code none;
            const auto file = fs::read_symlink(fmt::format("/proc/{}/fd/{}", process, number), none);
            if (!none) found.push_back(file);
        }
        return found.empty();
    };
    static_cast<void>(becomes_true(are_free, Milliseconds(1'000)));
    return found;
}

} // namespace

TEST_CASE("Descriptors: without any at its first use of CUDA, it is under control later", "[descriptors]") {
    if (!has_empty_tmp()) return;
    Host host(with_empty_tmp("exec \"$0\""));
    CHECK(host.tell("asleep") == "0"); // it runs
    {
        const AllUsed used(host);
        static_cast<void>(host.ask("alloc weights 4194304 0")); // the simulated driver needs one, too
        const auto tmp = fmt::format("/proc/{}/root/tmp", host.pid());
        for (const auto& entry : fs::directory_iterator(tmp))
            if (entry.path().filename().native().starts_with("gpu-sleep"))
                CHECK(entry.path().filename() == fs::path(agent_directory(0)).filename());
        CHECK_THAT(host.process().errors(), mentions("Too many open files"));
    }
    host.tell("alloc weights 4194304 0");
    CHECK(becomes_true([&] { return host.command("gpu-sleep").status == 0; }, Milliseconds(10'000)));
    host.wake_whole();
}

TEST_CASE("Descriptors: a sleeping program that has none left is asked and told", "[quick][descriptors]") {
    LoadedHost host;
    for (int i = 0; i < 3; ++i) { // the agent has a spare one again each time
        REQUIRE(host.command("gpu-sleep").status == 0);
        const AllUsed used(host);
        CHECK(host.state() == "asleep");
        // The simulated driver may need one for memory: then it is the wake that fails, not the asking.
        const auto woken = host.command("gpu-wake", {"--timeout", "8s"});
        INFO(woken.err);
        CHECK((woken.status == 0 || woken.err.find("OUT_OF_MEMORY") != std::string::npos));
        CHECK(host.state() == (woken.status == 0 ? "awake" : "asleep"));
    }
    host.wake_whole();
}

TEST_CASE("Descriptors: who connects and says nothing keeps nobody out where none is left", "[descriptors]") {
    LoadedHost host;
    const AllUsed used(host);
    Peer silent(host);
    CHECK(becomes_true([&] { return host.state() == "awake"; }));
    CHECK(silent.next()); // why it has to go
}

TEST_CASE("Descriptors: the agent's have no number of standard streams that are closed", "[descriptors]") {
    const Place place;
    LoadedHost host;
    host.tell("close_standard");
    const bool in_files = GENERATE(false, true);
    for (int i = 0; i < 3; ++i) {
        host.sleep(in_files ? place.store() : Arguments());
        CHECK(standard_descriptors(host.pid()).empty());
        CHECK(host.state() == "asleep");
        host.wake_whole();
        CHECK(standard_descriptors(host.pid()).empty());
    }
}

TEST_CASE("Descriptors: what a daemon writes to closed ones gets into none of the agent's", "[descriptors]") {
    const Place place;
    LoadedHost host;
    host.tell("close_standard");
    host.tell("mutter");
    int spoiled = 0;
    for (std::string before = "0", now; const int round : {1, 2, 3, 4, 5}) {
        INFO(round);
        const auto listing = host.start("gpu-ps"); // the agent opens and accepts at the same time
        host.sleep(place.store());
        host.wake_whole();
        now = host.tell("muttered");
        if (now != std::exchange(before, now)) ++spoiled;
    }
    CHECK(spoiled <= 1); // the C library opens files of its own, and does so at any time
}

TEST_CASE("Descriptors: a daemon's child finds those free that it had closed", "[descriptors]") {
    LoadedHost host;
    host.tell("close_standard");
    std::vector<Process> listings;
    for (int i = 0; i < 4; ++i) listings.push_back(host.start("gpu-ps", {"--watch=100ms", "--json"}));
    for (int i = 0; i < 20; ++i) {
        std::istringstream child(host.tell("fork"));
        pid_t pid = 0;
        REQUIRE(child >> pid);
        CHECK(standard_descriptors(pid).empty());
    }
}

TEST_CASE("Descriptors: a directory that nobody can guess is gone with its last socket", "[descriptors]") {
    if (!has_empty_tmp()) return;
    const auto done =
        ended(run(with_empty_tmp("mkdir -m 755 /tmp/gpu-sleep-0 && { echo 'alloc weights 4096 0'; "
                                 "until [ -e /tmp/gpu-sleep-0.*/*.sock ]; do sleep 0.02; done; } | "
                                 "\"$0\"; ls /tmp")));
    CHECK_THAT(done.out, mentions("gpu-sleep-0\n"));
    CHECK_THAT(done.out, !mentions("gpu-sleep-0."));
}
