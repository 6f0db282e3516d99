// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim by policies: the ladder, configuration files, root's pass over others' processes, and budgets
// for host memory.

#include "empty_tmp.hpp"
#include "mentions.hpp"
#include "place.hpp"
#include "stage.hpp"
#include "support/host.hpp"
#include "support/scratch.hpp"
#include "support/skip.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_each = 16 * k_mib;

/// A program all of whose calls the agent sees.
Arguments captured(Arguments more = {}) {
    more.emplace_back("GPU_SLEEP_CAPTURE=1");
    return more;
}

std::string said(const Host& host, const std::string& name) {
    return host.command("gpu-ps", {"--json"}).json("/processes/0/report/" + name);
}

Bytes bytes_held(const Host& host) {
    return std::stoull(said(host, "host_bytes")) + std::stoull(said(host, "retained_bytes"));
}

void become_idle(const Host& host, double seconds = 0.05) {
    REQUIRE(becomes_true([&] { return std::strtod(said(host, "idle_seconds").c_str(), nullptr) > seconds; }));
}

void write_file(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
}

/// gpu-reclaim with this user's own file in `home`, which may be empty.
Output reclaim_with(const std::filesystem::path& home, Arguments words) {
    Launch launch{{command_file("gpu-reclaim")}, {"XDG_CONFIG_HOME=" + home.string()}};
    launch.command.insert(launch.command.end(), words.begin(), words.end());
    return run(launch);
}

/// Whether this build reads configuration files.
bool reads_files() {
    const Scratch home;
    const auto file = home.path() / "c.toml";
    write_file(file, "");
    return run({{command_file("gpu-reclaim"), "--config", file, "--default-idle", "1d", "999999999"}})
               .status == 3;
}

/// All programs of this test, for a command: others' cannot get in the way as with a name.
std::string own_programs() {
    return std::to_string(::getpid());
}

/// So many programs, each with contents of k_each.
std::vector<std::unique_ptr<Host>> programs(int count) {
    const Arguments environment{"GPU_SLEEP_SIM_POISON=0"};
    std::vector<std::unique_ptr<Host>> all;
    for (int i = 0; i < count; ++i) {
        all.push_back(std::make_unique<Host>(captured(environment)));
        all.back()->tell(fmt::format("alloc weights {} 0", k_each));
    }
    return all;
}

/// The same, in a /tmp of their own: nobody else's account is theirs.
std::vector<std::unique_ptr<Host>> programs_apart(int count, Arguments environment) {
    environment.emplace_back("GPU_SLEEP_SIM_POISON=0");
    std::vector<std::unique_ptr<Host>> all;
    for (int i = 0; i < count; ++i) {
        auto launch = with_empty_tmp("exec \"$0\"");
        if (i > 0)
            launch.command = {"nsenter",
                              "--target",
                              std::to_string(all.front()->pid()),
                              "--user",
                              "--mount",
                              "--preserve-credentials",
                              command_file("integration_host")};
        launch.environment = captured(environment);
        all.push_back(std::make_unique<Host>(launch));
        all.back()->tell(fmt::format("alloc weights {} 0", k_each));
    }
    return all;
}

Bytes held_by_all(const std::vector<std::unique_ptr<Host>>& all) {
    return std::accumulate(all.begin(), all.end(), Bytes{0},
                           [](Bytes sum, const auto& host) { return sum + bytes_held(*host); });
}

auto count_asleep(const std::vector<std::unique_ptr<Host>>& all) {
    return std::count_if(all.begin(), all.end(), [](const auto& host) { return host->state() == "asleep"; });
}

void check_bytes_after_wake(const std::vector<std::unique_ptr<Host>>& all) {
    for (const auto& host : all) {
        REQUIRE(host->command("gpu-wake").status == 0);
        CHECK(host->tell("check_all") == "intact");
        CHECK(host->tell("faults") == "0");
    }
}

} // namespace

TEST_CASE("Policy: what stays idle moves from host memory to files without waking", "[policy]") {
    const Place place;
    Host host(captured());
    host.tell("alloc weights 4194304 0");
    become_idle(host);
    const auto pass = [&](const char* file) {
        const auto output = host.command(
            "gpu-reclaim", {"--idle", "10ms:host", "--idle", file, "--dir", place.path(), "--json"});
        INFO(output.err);
        REQUIRE(output.status == 0);
        return output;
    };
    auto output = pass("1h:file");
    CHECK(output.json("/processes/0/report/changed") == "true");
    CHECK(host.state() == "asleep");
    CHECK(said(host, "host_bytes") == "4194304");
    output = pass("1h:file");
    CHECK(output.json("/processes/0/report/changed") == "false");
    CHECK(output.json("/processes/0/report/notes/0") == "it sleeps already");
    output = pass("20ms:file");
    CHECK(output.json("/processes/0/report/changed") == "true");
    CHECK(output.json("/processes/0/report/devices/0/relocated_bytes") == "4194304");
    CHECK(host.state() == "asleep");
    CHECK(said(host, "host_bytes") == "0");
    CHECK(said(host, "gate/on_touch") == "wake");
    CHECK(place.files().size() == 1);
    CHECK(pass("20ms:file").json("/processes/0/report/notes/0") == "it sleeps already");
    host.tell("spin 1"); // a touch
    CHECK(host.state() == "awake");
    CHECK(host.tell("check_all") == "intact");
    CHECK(host.tell("faults") == "0");
}

TEST_CASE("Policy: a sleeper that work waits for, or that refuses sleeps, does not move", "[policy]") {
    const Place place;
    Host host(captured());
    host.tell("alloc weights 4194304 0");
    REQUIRE(host.command("gpu-sleep").status == 0);
    const auto note = [&] {
        const auto output =
            host.command("gpu-reclaim", {"--idle", "0s", "--store", "file", "--dir", place.path(), "--json"});
        CHECK(output.status == 0);
        CHECK(output.json("/processes/0/report/changed") == "false");
        return output.json("/processes/0/report/notes/0");
    };
    REQUIRE(host.command("gpu-inhibit").status == 0);
    CHECK(note() == "sleeps are inhibited");
    REQUIRE(host.command("gpu-inhibit", {"--release"}).status == 0);
    host.process().send("spin 1"); // which waits
    CHECK(becomes_true([&] { return said(host, "gate/waiting_threads") == "1"; }));
    CHECK(note() == "work waits for it to wake");
    CHECK(place.files().empty());
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.process().read_line().starts_with("ok"));
    CHECK(host.tell("check_all") == "intact");
}

TEST_CASE("Policy: without --idle the files say when, and of whom nothing is said --default-idle",
          "[policy]") {
    if (!reads_files()) return;
    const Scratch home;
    Host host(captured({"GPU_SLEEP_NAME=the-server"}));
    host.tell("alloc weights 4194304 0");
    become_idle(host);
    const auto pid = std::to_string(host.pid());
    const auto nothing = reclaim_with(home.path(), {pid});
    CHECK(nothing.status == 2);
    CHECK_THAT(nothing.err, mentions("--idle is missing, and so is a configuration") &&
                                mentions("/etc/gpu-sleep.toml") && mentions(home.file("gpu-sleep.toml")));
    write_file(home.path() / "gpu-sleep.toml", "[reclaim]\nidle = \"1h\"\n");
    auto output = reclaim_with(home.path(), {pid});
    CHECK(output.status == 0);
    CHECK_THAT(output.out, mentions("it has been idle for"));
    write_file(home.path() / "gpu-sleep.toml",
               "[reclaim]\nidle = \"1h\"\n[command.the-server]\nidle = \"10ms\"\n");
    output = reclaim_with(home.path(), {pid, "--show-config"});
    CHECK(output.status == 0);
    CHECK_THAT(output.out,
               mentions(home.file("gpu-sleep.toml")) && mentions(pid) && mentions("now: to host memory"));
    CHECK(reclaim_with(home.path(), {pid, "--show-config", "--json"}).json("/processes/0/acts_now") ==
          "true");
    CHECK(host.state() == "awake");
    CHECK(reclaim_with(home.path(), {pid, "--dry-run"}).status == 0);
    CHECK(host.state() == "awake");
    CHECK(reclaim_with(home.path(), {pid}).status == 0);
    CHECK(host.state() == "asleep");
    REQUIRE(host.command("gpu-wake").status == 0);
    become_idle(host);
    write_file(home.path() / "gpu-sleep.toml", "[command.the-server]\nexempt = true\n");
    output = reclaim_with(home.path(), {pid, "--default-idle", "10ms"});
    CHECK(output.status == 0);
    CHECK_THAT(output.out, mentions("no policy has it sleep"));
    write_file(home.path() / "gpu-sleep.toml", "");
    CHECK(reclaim_with(home.path(), {pid, "--default-idle", "10ms"}).status == 0);
    CHECK(host.state() == "asleep");
    write_file(home.path() / "gpu-sleep.toml", "[reclaim]\nidle = \"1h\nx");
    output = reclaim_with(home.path(), {pid});
    CHECK(output.status == 2);
    CHECK_THAT(output.err, mentions("gpu-sleep.toml:2: "));
    host.tell("spin 1");
    CHECK(host.tell("check_all") == "intact");
}

TEST_CASE("Policy: the administrator's file is tried by --config, and a user's own loosens nothing of it",
          "[policy]") {
    if (!reads_files()) return;
    const Scratch home;
    const auto config = home.file("admin.toml");
    Host host(captured());
    host.tell("alloc weights 4194304 0");
    become_idle(host);
    const auto pid = std::to_string(host.pid());
    write_file(config, "[reclaim]\nidle = \"10ms\"\n");
    write_file(home.path() / "gpu-sleep.toml",
               "[reclaim]\nexempt = true\nmin-awake = \"100d\"\n[tag.weights]\nexempt = true\n");
    CHECK(reclaim_with(home.path(), {pid, "--config", config}).status == 0);
    CHECK(host.state() == "asleep");
    REQUIRE(::chmod(config.c_str(), 0666) == 0);
    const auto refused = reclaim_with(home.path(), {pid, "--config", config});
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, mentions("others than its owner may write to it"));
    host.tell("spin 1");
}

TEST_CASE(
    "Policy: root's pass judges each process by its owner's file, which cannot loosen the administrator's",
    "[policy]") {
    if (::geteuid() != 0) return skip_without_right("be two users");
    if (!reads_files()) return;
    const Stage stage;
    const Scratch scratch;
    std::filesystem::permissions(scratch.path(), std::filesystem::perms(0755));
    const auto home = scratch.path() / "home";
    const auto own = home / ".config" / "gpu-sleep.toml";
    const auto config = scratch.file("admin.toml");
    write_file(scratch.path() / "passwd",
               fmt::format("root:x:0:0::/root:/bin/sh\nsleeper:x:65534:65534::{}:/bin/sh\n", home.string()));
    const auto write_own = [&](const std::string& text) {
        write_file(own, text);
        REQUIRE(::chown(own.c_str(), 65534, 65534) == 0);
    };
    const Arguments known{"unshare",
                          "--mount",
                          "sh",
                          "-c",
                          "mount --bind \"$0\" /etc/passwd && exec \"$@\"",
                          scratch.file("passwd")};
    auto probe = known;
    probe.emplace_back("true");
    if (run({probe}).status != 0) return skip_without_right("make namespaces");
    auto launch = stage.launch({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
    launch.environment.emplace_back("GPU_SLEEP_CAPTURE=1");
    Host host(launch);
    host.tell("alloc weights 4194304 0");
    become_idle(host);
    const auto pass = [&](Arguments more = {}) {
        auto words = known;
        for (const auto& word :
             {command_file("gpu-reclaim"), std::string("--config"), config, std::to_string(host.pid())})
            words.push_back(word);
        words.insert(words.end(), more.begin(), more.end());
        return run({words});
    };
    write_file(config, "[reclaim]\nidle = \"10ms\"\n");
    SECTION("it says to sleep later, and never") {
        write_own("[reclaim]\nidle = \"1d\"\nexempt = true\nmin-awake = \"1d\"\n");
        CHECK(pass().status == 0);
        CHECK(host.state() == "asleep");
    }
    SECTION("it says to sleep although the administrator does not") {
        write_file(config, "[reclaim]\nidle = \"1d\"\n");
        write_own("[reclaim]\nidle = \"10ms\"\n");
        CHECK_THAT(pass({"--show-config"}).out, mentions("of sleeper: ") && mentions(own.string()));
        CHECK(pass().status == 0);
        CHECK(host.state() == "asleep");
    }
    SECTION("it is wrong, or not the user's to write: the administrator's holds alone") {
        write_own("[reclaim]\nidel = \"1d\"\n");
        auto output = pass({"--show-config"});
        CHECK(output.status == 0);
        CHECK_THAT(output.err, mentions(":2: reclaim.idel: there is no such key; did you mean 'idle'?"));
        CHECK_THAT(output.out, mentions("now: to host memory"));
        write_own("[user.root]\nidle = \"0s\"\n");
        CHECK_THAT(pass({"--show-config"}).err,
                   mentions("only the administrator's file has sections for users"));
        REQUIRE(::chmod(own.c_str(), 0666) == 0);
        output = pass();
        CHECK(output.status == 0);
        CHECK_THAT(output.err, mentions("others than its owner may write to it"));
        CHECK(host.state() == "asleep");
    }
    SECTION("it is a link to what root alone may read: nothing of that is used or shown") {
        write_file(scratch.path() / "secret", "[reclaim]\nsecret = \"swordfish\"\n");
        REQUIRE(::chmod(scratch.file("secret").c_str(), 0600) == 0);
        std::filesystem::create_directories(own.parent_path());
        std::filesystem::create_symlink(scratch.file("secret"), own);
        const auto output = pass();
        CHECK_THAT(output.err, mentions("it belongs to somebody else") && !mentions("swordfish"));
        CHECK(host.state() == "asleep");
    }
    host.tell("spin 1");
    CHECK(host.tell("check_all") == "intact");
}

TEST_CASE("Policy: eight that sleep at once within a budget for three spill to files, or stay awake",
          "[policy]") {
    if (!has_empty_tmp()) return;
    const Scratch disk("/var/tmp"); // files in memory would be no help
    const auto all = programs_apart(8, {fmt::format("GPU_SLEEP_HOST_BUDGET={}", 3 * k_each + k_mib)});
    SECTION("with a directory all sleep") {
        const auto output = run({{command_file("gpu-sleep"), own_programs(), "--spill", disk.file("sleep")}});
        INFO(output.err);
        CHECK(output.status == 0);
        CHECK(count_asleep(all) == 8);
        CHECK(held_by_all(all) <= 3 * k_each + k_mib);
        CHECK(held_by_all(all) >= 3 * k_each);
    }
    SECTION("without one three do, and the others say why not") {
        const auto output = run({{command_file("gpu-sleep"), own_programs()}});
        CHECK(output.status == 8);
        CHECK_THAT(output.err, mentions("that they may hold together"));
        CHECK(count_asleep(all) == 3);
        CHECK(held_by_all(all) == 3 * k_each);
    }
    check_bytes_after_wake(all);
}

TEST_CASE("Policy: who sleeps within a budget has what others only retain", "[policy]") {
    if (!has_empty_tmp()) return;
    const auto all = programs_apart(4, {fmt::format("GPU_SLEEP_HOST_BUDGET={}", 2 * k_each)});
    for (const auto& host : all) { // each finds what the two before it retain
        REQUIRE(host->command("gpu-sleep").status == 0);
        CHECK(bytes_held(*host) == k_each);
        CHECK(held_by_all(all) <= 2 * k_each);
        REQUIRE(host->command("gpu-wake").status == 0);
    }
    REQUIRE(all[0]->command("gpu-sleep").status == 0);
    REQUIRE(all[1]->command("gpu-sleep").status == 0);
    CHECK(all[2]->command("gpu-sleep").status == 8); // nobody retains anything
    check_bytes_after_wake(all);
}

TEST_CASE("Policy: a pass puts no more to sleep into host memory than the budget has room for", "[policy]") {
    const Place place;
    const auto all = programs(3);
    for (const auto& host : all) become_idle(*host);
    const auto pass = [&](Arguments more) {
        Launch launch{{command_file("gpu-reclaim"), own_programs(), "--idle", "10ms", "--host-budget",
                       std::to_string(2 * k_each)}};
        launch.command.insert(launch.command.end(), more.begin(), more.end());
        return run(launch);
    };
    auto output = pass({});
    CHECK(output.status == 0);
    CHECK_THAT(output.out, mentions("the budget for host memory has no room for it"));
    CHECK(count_asleep(all) == 2);
    output = pass({"--dir", place.path()});
    INFO(output.err);
    CHECK(output.status == 0);
    CHECK(count_asleep(all) == 3);
    CHECK(held_by_all(all) == 2 * k_each);
    CHECK(place.files().size() == 1);
    check_bytes_after_wake(all);
}

TEST_CASE("Policy: beyond the budget what is retained goes first, then the longest sleeping moves",
          "[policy]") {
    const Place place;
    const auto all = programs(4);
    for (const auto i : {2, 0, 1, 3}) {
        REQUIRE(all[static_cast<std::size_t>(i)]->command("gpu-sleep").status == 0);
        pause_for(Milliseconds(20));
    }
    REQUIRE(all[3]->command("gpu-wake").status == 0);
    CHECK(bytes_held(*all[3]) == k_each); // retained
    const auto pass = [&](Bytes budget, Arguments more = {}) {
        Launch launch{{command_file("gpu-reclaim"), own_programs(), "--host-budget", std::to_string(budget)}};
        launch.command.insert(launch.command.end(), more.begin(), more.end());
        return run(launch);
    };
    CHECK(pass(4 * k_each).status == 0);
    CHECK(held_by_all(all) == 4 * k_each);
    auto output = pass(3 * k_each);
    CHECK(output.status == 0);
    CHECK_THAT(output.out, mentions("of retained host memory"));
    CHECK(becomes_true([&] { return bytes_held(*all[3]) == 0; }));
    CHECK(held_by_all(all) == 3 * k_each);
    output = pass(2 * k_each);
    CHECK(output.status == 8);
    CHECK_THAT(output.err,
               mentions("cannot keep the budget of 32.0 MiB for the host memory of all processes: "
                        "48.0 MiB would stay held"));
    CHECK_THAT(pass(2 * k_each, {"--dir", place.path(), "--dry-run"}).out, mentions("would move"));
    CHECK(held_by_all(all) == 3 * k_each);
    output = pass(2 * k_each, {"--dir", place.path()});
    CHECK(output.status == 0);
    CHECK_THAT(output.out, mentions("to another store"));
    CHECK(bytes_held(*all[2]) == 0); // which has slept for longest
    CHECK(held_by_all(all) == 2 * k_each);
    CHECK(count_asleep(all) == 3);
    check_bytes_after_wake(all);
}
