// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Jobs that are stopped and continued: with gpu-run --on-stop sleep they sleep meanwhile.

#include "base/process.hpp"
#include "control_group.hpp"
#include "place.hpp"
#include "support/files_of.hpp"
#include "support/host.hpp"

#include <fmt/format.h>

#include <sys/resource.h>
#include <sys/wait.h>

using namespace gpu_sleep::test;

namespace {

constexpr const char* k_allocation = "alloc weights 33554432 0";
constexpr const char* k_slow = "delay cuMemcpyDtoHAsync 2000000";
constexpr const char* k_quick = "delay cuMemcpyDtoHAsync 0";

Arguments sleeping(Arguments more = {}) {
    more.emplace_back("GPU_SLEEP_ON_STOP=sleep");
    return more;
}

/// A process with contents that sleeps when it is stopped.
struct Job : Host {
    explicit Job(Arguments environment = {}) : Host(sleeping(std::move(environment))) { tell(k_allocation); }
};

/// As /proc shows it: 'T' is stopped.
char state_of(pid_t process) {
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string stat;
    std::getline(file, stat, '\0');
    const auto end = stat.rfind(')');
    return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

bool is_stopped(const Host& host) {
    return state_of(host.pid()) == 'T';
}

/// How long it takes until it has stopped.
double stop(Host& host) {
    const auto start = Clock::now();
    host.process().signal(SIGTSTP);
    int status = 0; // as a shell hears of it
    REQUIRE(becomes_true([&] { return ::waitpid(host.pid(), &status, WUNTRACED | WNOHANG) == host.pid(); }));
    CHECK(WIFSTOPPED(status));
    CHECK(is_stopped(host));
    return seconds_since(start);
}

void check_awake(Host& host) {
    CHECK(becomes_true([&] { return host.state() == "awake"; }));
    host.check_whole();
}

void check_continues(Host& host) {
    host.process().signal(SIGCONT);
    check_awake(host);
}

} // namespace

TEST_CASE("Stop: a job sleeps before it stops, and wakes when it is continued", "[quick][stop]") {
    Job host;
    CHECK_THAT(host.command("gpu-ps").out, mentions("it sleeps when SIGTSTP stops it"));
    CHECK(host.tell("stops_in_child") == "default");
    host.tell("inhibit"); // it stops awake then
    stop(host);
    check_continues(host);
    CHECK(host.report("woken_bytes") == "0");
    host.tell("uninhibit");
    for (int round = 1; round <= 3; ++round) {
        stop(host);
        // Nobody answers; that it sleeps shows in what the wake brings back.
        check_continues(host);
        CHECK(host.report("woken_bytes") == "33554432");
        CHECK_FALSE(is_stopped(host));
    }
}

TEST_CASE("Stop: a job that sleeps while it is stopped shows its bytes, and alarms nobody", "[stop]") {
    Job host;
    stop(host);
    const auto json = ended(host.command("gpu-ps", {"--json"}));
    CHECK(json.json("state report/host_bytes report/tags/0/kept_bytes", "/processes/0/") ==
          "asleep 33554432 33554432");
    constexpr double k_hour = 3'600;
    const auto file = std::filesystem::path(socket_file(host.pid()) + k_state_suffix);
    std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) - std::chrono::hours(1));
    const auto old = host.command("gpu-ps", {"--json"});
    for (const auto* const age : {"stopped_report_seconds", "report/state_seconds"})
        CHECK(std::stod(old.json(fmt::format("/processes/0/{}", age))) >= k_hour);
    const auto table = ended(host.command("gpu-ps"));
    CHECK(table.err.empty());
    CHECK_THAT(table.out, mentions("stopped, asleep") && mentions("32.0 MiB") &&
                              mentions(fmt::format("to resume it: kill -CONT {}", host.pid())));
    const auto metrics = host.command("gpu-ps", {"--prometheus"}).out;
    CHECK_THAT(metrics, mentions("gpu_sleep_stopped{") && mentions("gpu_sleep_stopped_report_seconds{") &&
                            mentions(R"(state="asleep"} 1)") && !mentions("gpu_sleep_unanswered{"));
    check_continues(host);
    CHECK(host.command("gpu-ps", {"--json"}).json("/processes/0/stopped_report_seconds") == "null");
}

TEST_CASE("Stop: what a stopped job has left is believed only if it is whole, and its own", "[stop]") {
    Host other;
    other.tell(k_allocation);
    other.sleep();
    Host host(sleeping());
    const auto file = socket_file(host.pid()) + k_state_suffix;
    host.tell(k_allocation);
    stop(host);
    const auto whole = content_of(file);
    const auto check_unknown = [&] {
        check_ended(host.command("gpu-ps"), 4, mentions("last known state: asleep"));
    };
    const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
    for (const auto size : {whole.size() - 1, whole.size() / 2, std::size_t{0}}) {
        write(whole.substr(0, size));
        check_unknown();
    }
    auto changed = whole;
    changed.back() ^= 1;
    write(changed);
    check_unknown();
    write(whole + std::string(std::size_t{2} << 20, '\0'));
    check_unknown();
    write(content_of(socket_file(other.pid()) + k_state_suffix));
    check_unknown();
    write(whole);
    if (::geteuid() == 0) {
        constexpr uid_t k_another = 65534;
        REQUIRE(::chown(file.c_str(), k_another, k_another) == 0);
        check_unknown();
        REQUIRE(::chown(file.c_str(), 0, 0) == 0);
    }
    CHECK(host.command("gpu-ps").status == 0);
    std::filesystem::rename(file, file + ".moved");
    check_unknown();
    std::filesystem::create_symlink(file + ".moved", file);
    check_unknown();
    std::filesystem::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    check_unknown();
    std::filesystem::remove(file + ".moved");
    check_continues(host);
}

TEST_CASE("Stop: a job that cannot leave how it is leaves nothing old, and nothing when it ends", "[stop]") {
    std::string file;
    {
        Host host(sleeping());
        file = socket_file(host.pid()) + k_state_suffix;
        host.tell(k_allocation);
        host.cycle();
        REQUIRE(std::filesystem::exists(file));
        rlimit before{};
        REQUIRE(::prlimit(host.pid(), RLIMIT_FSIZE, nullptr, &before) == 0);
        const rlimit none{0, before.rlim_max};
        REQUIRE(::prlimit(host.pid(), RLIMIT_FSIZE, &none, nullptr) == 0);
        stop(host);
        CHECK_FALSE(std::filesystem::exists(file));
        CHECK_THAT(host.command("gpu-ps").err, mentions("last known state: asleep"));
        REQUIRE(::prlimit(host.pid(), RLIMIT_FSIZE, &before, nullptr) == 0);
        check_continues(host);
        CHECK(std::filesystem::exists(file));
    }
    CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("Stop: without the option a job stops at once, and awake", "[stop]") {
    const bool is_told = GENERATE(false, true);
    Host host(is_told ? Arguments{"GPU_SLEEP_ON_STOP=stop"} : Arguments{});
    host.tell(k_allocation);
    host.process().signal(SIGSTOP); // SIGTSTP does not stop a group that no shell looks after
    REQUIRE(becomes_true([&] { return is_stopped(host); }));
    check_continues(host);
    CHECK(host.report("woken_bytes") == "0");
    CHECK_THAT(host.command("gpu-ps").out, !mentions("SIGTSTP"));
}

TEST_CASE("Stop: what slept before, sleeps afterwards", "[stop]") {
    Job host;
    host.tell("alloc cache 33554432 0");
    REQUIRE(host.command("gpu-sleep", {"--tags", "cache"}).status == 0);
    stop(host);
    host.process().signal(SIGCONT);
    CHECK(becomes_true([&] { return host.report("woken_bytes") == "33554432"; }));
    CHECK(host.state() == "partial");
    CHECK(host.command("gpu-ps", {"--json"}).tag("cache", "state") == "asleep");
    REQUIRE(host.command("gpu-wake").status == 0);
    check_awake(host);
}

TEST_CASE("Stop: where one tag cannot wake, the others stay awake", "[stop]") {
    const Place place;
    Job host;
    host.tell("alloc cache 33554432 0");
    host.sleep(with(place.store(), {"--tags", "cache"}));
    host.tell("alloc cache 33554432 0"); // so that the stop puts some of the tag to sleep
    stop(host);
    REQUIRE(place.files().size() == 1);
    std::filesystem::resize_file(place.files().front(), 4096);
    host.process().signal(SIGCONT);
    CHECK(becomes_true([&] { return host.report("gate/on_touch") == "wake"; }));
    const auto json = host.command("gpu-ps", {"--json"});
    CHECK(json.tag("weights", "state") == "awake");
    CHECK(json.tag("cache", "state") == "damaged");
}

TEST_CASE("Stop: a sleep that does not fit the grace time is given up, and is not tried again", "[stop]") {
    constexpr double k_grace = 2; // longer than a busy machine takes for what follows
    Job host({"GPU_SLEEP_STOP_GRACE=2000"});
    host.tell("delay cuMemcpyDtoHAsync 4000000");
    CHECK(stop(host) >= k_grace);
    CHECK_THAT(host.command("gpu-ps").out, mentions("stopped, awake") && mentions("32.0 MiB"));
    const auto warned = host.process().errors(); // the default level shows warnings
    CHECK_THAT(warned, mentions("SIGTSTP: stopped awake: "));
    check_continues(host);
    CHECK(host.report("woken_bytes") == "0");
    CHECK(stop(host) < k_grace);
    CHECK_THAT(host.process().errors().substr(warned.size()),
               mentions("SIGTSTP: stopped awake, because a sleep takes longer than 2.00 s"));
    host.process().signal(SIGCONT);
    host.tell(k_quick);
    check_awake(host);
}

TEST_CASE("Stop: a second stop meanwhile changes nothing, and going on beforehand prevents it", "[stop]") {
    Job host({"GPU_SLEEP_STOP_GRACE=60000"});
    host.tell(k_slow);
    host.process().signal(SIGTSTP);
    REQUIRE(becomes_true([&] { return host.moves_contents(); }));
    SECTION("a second stop") {
        host.process().signal(SIGTSTP);
        REQUIRE(becomes_true([&] { return is_stopped(host); }));
        host.process().signal(SIGCONT);
        CHECK(becomes_true([&] { return host.report("woken_bytes") == "33554432"; }));
        CHECK_FALSE(is_stopped(host));
    }
    SECTION("going on") {
        if (GENERATE(false, true)) host.tell("block"); // so that no handler runs
        host.process().signal(SIGCONT);
        CHECK(becomes_true([&] { return !host.moves_contents(); }));
        pause_for(Milliseconds(200));
        CHECK_FALSE(is_stopped(host));
        CHECK(host.report("woken_bytes") == "0");
        CHECK_THAT(host.process().errors(),
                   mentions("grace time is too short")); // as when SIGSTOP came between
    }
    host.tell(k_quick);
    check_awake(host);
    stop(host); // and later ones count again
    check_continues(host);
}

TEST_CASE("Stop: one operation at a time: a command's sleep goes first, and it stops asleep", "[stop]") {
    Job host({"GPU_SLEEP_STOP_GRACE=60000"});
    host.tell(k_slow);
    auto sleep = host.start("gpu-sleep");
    REQUIRE(becomes_true([&] { return host.moves_contents(); }));
    host.process().signal(SIGTSTP);
    CHECK(sleep.finish().status == 0);
    REQUIRE(becomes_true([&] { return is_stopped(host); }));
    host.process().signal(SIGCONT);
    REQUIRE(becomes_true([&] { return !is_stopped(host); }));
    REQUIRE(host.command("gpu-wake").status == 0); // by hand, unless the stop slept what was awake
    host.tell(k_quick);
    check_awake(host);
}

TEST_CASE("Stop: a program's own handler replaces ours, and gpu-ps says so", "[stop]") {
    Job host;
    host.tell("handle_stops");
    CHECK_THAT(host.command("gpu-ps").out, mentions("--on-stop sleep has no effect"));
    host.process().signal(SIGTSTP);
    CHECK(becomes_true([&] { return host.tell("signals") == "1"; }));
    CHECK_FALSE(is_stopped(host));
    check_awake(host);
    CHECK(host.report("woken_bytes") == "0");
}

TEST_CASE("Stop: a disposition that was not the default when the agent started is left alone", "[stop]") {
    Host host(sleeping());
    host.tell("handle_stops");
    host.tell(k_allocation);
    host.process().signal(SIGTSTP);
    CHECK(becomes_true([&] { return host.tell("signals") == "1"; }));
}

TEST_CASE("Stop: a transaction that was frozen midway ends whole after the thaw", "[stop]") {
    const Freezer freezer;
    const bool by_group = GENERATE(false, true);
    if (by_group && !freezer) return skip_without_right("make a control group that freezes");
    const bool is_too_late = GENERATE(false, true);
    Job host({is_too_late ? "GPU_SLEEP_STOP_GRACE=3000" : "GPU_SLEEP_STOP_GRACE=60000"});
    host.tell("delay cuMemcpyDtoHAsync 1000000");
    if (by_group) freezer.take(host.pid());
    host.process().signal(SIGTSTP);
    REQUIRE(becomes_true([&] { return host.moves_contents(); }));
    if (by_group)
        freezer.freeze();
    else
        host.process().signal(SIGSTOP);
    pause_for(Milliseconds(3'500)); // longer than the grace time
    if (by_group)
        freezer.thaw();
    else
        host.process().signal(SIGCONT); // which is also that it goes on: it need not stop any more
    if (by_group) {
        REQUIRE(becomes_true([&] { return is_stopped(host); }));
        host.process().signal(SIGCONT);
    }
    CHECK(becomes_true([&] { return !is_stopped(host) && !host.moves_contents(); }));
    host.tell(k_quick);
    check_awake(host);
    if (by_group && !is_too_late) CHECK(host.report("woken_bytes") == "33554432");
    host.cycle();
    check_awake(host);
}
