// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim by policies: the ladder, configuration files, and root's pass over others' processes.

#include "place.hpp"
#include "stage.hpp"
#include "support/configuration.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

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

/// The member of the process in what gpu-reclaim --why --json says of all.
std::string said_of(const std::string& pid, const Output& all, const std::string& member) {
    const auto pids = all.of_all("/pid");
    const auto found = std::find(pids.begin(), pids.end(), pid);
    REQUIRE(found != pids.end());
    return all.json(fmt::format("/processes/{}/{}", found - pids.begin(), member));
}

} // namespace

TEST_CASE("Policy: what stays idle moves from host memory to files without waking", "[quick][policy]") {
    if (!reads_configurations()) return;
    const Place place;
    LoadedHost host(captured());
    become_idle(host);
    const auto pass = [&](const char* file) {
        const Configuration ladder(fmt::format(
            "[reclaim]\nidle = [\"10ms:host\", \"{}\"]\ndirectory = \"{}\"\n", file, place.path().native()));
        return ended(host.command("gpu-reclaim", {"--config", ladder.file(), "--json"}));
    };
    auto output = pass("1h:file");
    CHECK(output.json("/processes/0/report/changed") == "true");
    CHECK(host.state() == "asleep");
    CHECK(host.report("host_bytes") == "4194304");
    output = pass("1h:file");
    CHECK(output.json("/processes/0/report/changed") == "false");
    CHECK(output.json("/processes/0/report/notes/0") == "it is already asleep");
    output = pass("20ms:file");
    CHECK(output.json("/processes/0/report/changed") == "true");
    CHECK(output.json("/processes/0/report/devices/0/relocated_bytes") == "4194304");
    CHECK(host.state() == "asleep");
    CHECK(host.report("host_bytes gate/on_touch") == "0 wake");
    CHECK(place.files().size() == 1);
    CHECK(pass("20ms:file").json("/processes/0/report/notes/0") == "it is already asleep");
    host.tell("spin 1"); // a touch
    CHECK(host.state() == "awake");
    host.check_whole();
}

TEST_CASE("Policy: notify hears of a pass before and after it, and spares whom it names", "[policy]") {
    if (!reads_configurations()) return;
    // Others write to /tmp, where the build may be, too.
    const auto beside = std::filesystem::path(command_file("gpu-ps")).parent_path();
    const auto* const home = std::getenv("HOME");
    const Scratch scratch(home && beside.native().starts_with("/tmp/") ? home : beside);
    const auto script = scratch.file("notify");
    const auto log = scratch.file("log");
    const auto write_script = [&](const std::string& end) {
        write_file(script, fmt::format("#!/bin/sh\n{{ echo $1; cat; }} >>{}\n{}\n", log, end));
        REQUIRE(::chmod(script.c_str(), 0755) == 0);
    };
    const Configuration config(fmt::format("[reclaim]\nidle = \"10ms\"\nnotify = \"{}\"\n", script));
    LoadedHost host(captured({"GPU_SLEEP_NAME=the-server"}));
    become_idle(host);
    const auto pass = [&](Arguments more = {}) {
        return host.command("gpu-reclaim", with({"--config", config.file()}, more));
    };
    const auto told = [&] {
        std::ifstream file(log);
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const auto before = fmt::format("before\n{}\t", host.pid());
    SECTION("it names the process: that is left alone") {
        write_script(fmt::format("echo {}", host.pid()));
        CHECK(succeeded(pass({"--dry-run"})));
        CHECK(told().empty());
        CHECK_THAT(ended(pass()).out, mentions("the notify program keeps it awake in this pass"));
        CHECK(host.state() == "awake");
        CHECK_THAT(told(), mentions(before) && mentions("\tthe-server\tunused for ") &&
                               mentions(", to host memory\n") && !mentions("after"));
    }
    SECTION("it names nobody: that sleeps") {
        write_script("");
        CHECK(succeeded(pass()));
        CHECK(host.state() == "asleep");
        CHECK_THAT(told(), mentions(before) && mentions(fmt::format("after\n{}\t", host.pid())) &&
                               mentions("\tthe-server\tasleep, 4.00 MiB freed\n"));
    }
    SECTION("it fails, or takes too long: the pass says so, and goes on") {
        const auto [end, words] = GENERATE(std::pair("exit 3", "it ended with status 3"),
                                           std::pair("sleep 60", "it was ended after 5 s"));
        write_script(fmt::format("[ $1 = after ] || {}", end));
        const auto output = ended(pass());
        CHECK_THAT(output.err, mentions(words));
        CHECK(output.seconds < 30);
        CHECK(host.state() == "asleep");
    }
    SECTION("others may write to it, or to a folder above it: it is not run") {
        write_script("");
        const bool is_folder = GENERATE(false, true);
        const auto changed = is_folder ? scratch.path().string() : script;
        REQUIRE(::chmod(changed.c_str(), 0777) == 0);
        check_ended(pass(), 2,
                    mentions(changed + " is not used: users other than its owner may write to it"));
        CHECK(told().empty());
        CHECK(host.state() == "awake");
    }
    SECTION("another file takes its name after it was checked: that is not run") {
        write_script(fmt::format("mv {0}.other {0}", script));
        write_file(script + ".other", fmt::format("#!/bin/sh\necho replaced >>{}\n", log));
        REQUIRE(::chmod((script + ".other").c_str(), 0755) == 0);
        CHECK(succeeded(pass()));
        CHECK_THAT(told(), mentions("after\n") && !mentions("replaced"));
    }
}

TEST_CASE("Policy: without --idle the files say when, and 15 minutes hold for all others", "[policy]") {
    if (!reads_configurations()) return;
    const Scratch home;
    CHECK(reclaim_with(home.path(), {"--why", "--user", "61235"}).out ==
          "no configuration file: processes that are idle for 15m sleep in host memory\n"
          "no process of 61235 has an agent; gpu-enable(1) says how they get one\n");
    LoadedHost host(captured({"GPU_SLEEP_NAME=the-server"}));
    become_idle(host);
    const auto pid = std::to_string(host.pid());
    CHECK_THAT(reclaim_with(home.path(), {pid, "--why"}).out, mentions("policy: 15m host"));
    write_file(home.path() / "gpu-sleep.toml",
               "[reclaim]\nidle = \"1h\"\n[command.the-server]\nidle = \"10ms\"\n");
    const auto output = reclaim_with(home.path(), {"--why"}); // its status is also that of others' agents
    CHECK_THAT(output.out,
               mentions(home.file("gpu-sleep.toml")) && mentions(pid) && mentions("now: to host memory"));
    CHECK_THAT(reclaim_with(home.path(), {pid, "--why"}).out,
               mentions("nothing prevents it") && mentions("now: to host memory"));
    const auto said = [&](const std::string& member) {
        return said_of(pid, reclaim_with(home.path(), {"--why", "--json"}), member);
    };
    CHECK(said("acts_now") == "true");
    const auto says_no = [&](const char* reason) {
        CHECK_THAT(reclaim_with(home.path(), {"--why"}).out, mentions(std::string("nothing now: ") + reason));
        CHECK(said("acts_now") == "false");
        CHECK(said("reason") == reason);
    };
    REQUIRE(host.command("gpu-inhibit").status == 0);
    says_no("sleeps are inhibited");
    REQUIRE(host.command("gpu-inhibit", {"--release"}).status == 0);
    write_file(home.path() / "gpu-sleep.toml",
               fmt::format("[command.the-server]\nidle = \"10ms:file\"\ndirectory = \"{}\"\n",
                           home.file("none/files")));
    CHECK_THAT(reclaim_with(home.path(), {"--why", pid}).out,
               mentions("nothing now: ") && mentions("it would fail") && !mentions("now: to files"));
    CHECK(reclaim_with(home.path(), {pid}).status != 0);
    write_file(home.path() / "gpu-sleep.toml", "[command.the-server]\nidle = \"10ms\"\n");
    CHECK(reclaim_with(home.path(), {pid}).status == 0);
    CHECK(host.state() == "asleep");
    CHECK_THAT(reclaim_with(home.path(), {pid}).out, mentions("already asleep") && !mentions("GPU 0"));
    host.tell("spin 1");
    CHECK(host.tell("check_all") == "intact");
}

TEST_CASE("Policy: a user is exempt from a rule for a program, and what has no effect is named", "[policy]") {
    if (!reads_configurations()) return;
    const Scratch home;
    const auto config = home.file("admin.toml");
    auto me = run({{"id", "-un"}}).out;
    me.pop_back(); // the newline
    LoadedHost host(captured());
    become_idle(host);
    const auto pid = std::to_string(host.pid());
    const std::string recipe =
        "reclaim.exempt = true\ncommand.integration_host.idle = \"10ms\"\ncommand.nothing.idle = \"1h\"\n"
        "user.nobody-at-all.idle = \"1h\"\n";
    write_file(config, recipe);
    const auto asked = [&](Arguments words) {
        Arguments all{"--config", config, "--why"};
        all.insert(all.end(), words.begin(), words.end());
        const auto output = reclaim_with(home.path(), all);
        // Without a pid it asks every agent of the machine, and the status is also that of others.
        CHECK((output.status == 0 || words != Arguments{pid}));
        return output;
    };
    CHECK_THAT(asked({pid}).out, mentions("now: to host memory"));
    write_file(config, recipe + "user." + me + ".idle = \"never\"\n");
    const auto by = fmt::format("user.{}.exempt of {}", me, config);
    const auto why = fmt::format("it is exempt by {}", by);
    const auto overridden =
        fmt::format("overridden: command.integration_host.idle of {}, by {}\n", config, by);
    CHECK_THAT(asked({pid}).out, mentions("policy: never\n") && mentions(why) && mentions(overridden));
    const auto all = asked({});
    CHECK_THAT(all.out, mentions(why) && mentions(overridden));
    CHECK_THAT(all.err, mentions("[command.nothing] of " + config + " matches no process\n") &&
                            mentions("[user.nobody-at-all] of " + config + " names no user\n") &&
                            !mentions("[user." + me + "]") && !mentions("[command.integration_host]"));
    CHECK_THAT(said_of(pid, asked({"--json"}), "overridden/1"),
               mentions("command.integration_host.idle of ") && mentions(by));
    write_file(home.path() / "gpu-sleep.toml", "[reclaim]\nidle = \"10ms\"\n"); // the user's own
    CHECK(reclaim_with(home.path(), {"--config", config, pid}).status == 0);
    CHECK(host.state() == "awake");
    host.check_whole();
}

TEST_CASE("Policy: what is wrong with a file is said also where nothing comes of a pass", "[policy]") {
    if (!reads_configurations()) return;
    const Scratch home;
    const auto config = home.file("admin.toml");
    write_file(config, "[reclaim]\nidle = \"15m\"\n");
    const auto* const option = GENERATE("--quiet", "--dry-run", "--need=1B");
    auto output = ended(reclaim_with(home.path(), {"--config", config, option, "999999999"}), 3);
    write_file(home.path() / "gpu-sleep.toml", "[reclaim]\nidel = \"1h\"\n");
    output = reclaim_with(home.path(), {"--config", config, option, "999999999"});
    CHECK(output.status == 2);
    CHECK_THAT(output.err, mentions("gpu-sleep.toml:2: ") && mentions("see man gpu-sleep.toml"));
    write_file(home.path() / "gpu-sleep.toml", std::string((1U << 20) + 1, '#'));
    output = reclaim_with(home.path(), {"--config", config, option, "999999999"});
    CHECK(output.status == 2);
    CHECK_THAT(output.err, mentions("it is longer than 1.00 MiB\n"));
}

TEST_CASE("Policy: of two files of the same name the one that is wrong is named", "[policy]") {
    if (!reads_configurations()) return;
    const Scratch home;
    const Scratch other;
    write_file(home.path() / "gpu-sleep.toml", "[reclaim]\nidel = \"1h\"\n");
    write_file(other.path() / "gpu-sleep.toml", "");
    check_ended(run({{"env", "-C", other.path(), "XDG_CONFIG_HOME=" + home.path().string(),
                      command_file("gpu-reclaim"), "--config", "gpu-sleep.toml", "--dry-run"}}),
                2, mentions(home.path().string()) && !mentions("--config: "));
}

TEST_CASE("Policy: a pass ends with the worst of what failed, budgets that are not kept too", "[policy]") {
    if (!reads_configurations()) return;
    const Scratch home;
    const auto config = home.file("admin.toml");
    write_file(config, "[host]\nbudget = \"1MiB\"\n[command.idler]\nidle = \"10ms:file\"\n");
    LoadedHost sleeper(captured());
    REQUIRE(sleeper.command("gpu-sleep").status == 0);
    LoadedHost idle(captured({"GPU_SLEEP_NAME=idler"}));
    become_idle(idle);
    const auto output =
        ended(reclaim_with(home.path(), {"--config", config, "--dry-run", std::to_string(::getpid())}), 8);
    CHECK_THAT(output.err,
               mentions("cannot keep to the budget of 1.00 MiB") && mentions("no directory is set"));
}

TEST_CASE("Policy: root's pass judges each by its owner's file, which cannot loosen root's", "[policy]") {
    if (::geteuid() != 0) return skip_without_right("be two users");
    if (!reads_configurations()) return;
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
    LoadedHost host(launch);
    become_idle(host);
    const auto pass = [&](Arguments more = {}) {
        auto words = known;
        for (const auto& word :
             {command_file("gpu-reclaim"), std::string("--config"), config, std::to_string(host.pid())})
            words.push_back(word);
        return run({with(std::move(words), more)});
    };
    write_file(config, "[reclaim]\nidle = \"10ms\"\n");
    SECTION("it says to sleep although the administrator does not") {
        write_file(config, "[reclaim]\nidle = \"1d\"\n");
        write_own("[reclaim]\nidle = \"10ms\"\n");
        CHECK_THAT(pass({"--why"}).out, mentions("policy: 10ms host"));
        CHECK(pass().status == 0);
        CHECK(host.state() == "asleep");
    }
    SECTION("its directory cannot be used: the administrator's file decides alone") {
        write_own("[reclaim]\nidle = \"10ms:file\"\ndirectory = \"/root/files\"\n");
        const auto output = ended(pass(), 5);
        CHECK_THAT(output.err, mentions("/root/files"));
        CHECK(host.state() == "asleep");
        CHECK(host.report("host_bytes") == "4194304");
    }
    SECTION("the administrator's is wrong: nothing is said of a process, and nothing is done") {
        write_file(config, "[reclaim]\nidel = \"1d\"\n");
        CHECK(pass({"--why"}).status == 2);
        CHECK(pass().status == 2);
    }
    SECTION("it is wrong, or not the user's to write: the administrator's holds alone") {
        write_own("[reclaim]\nidel = \"1d\"\n");
        auto output = ended(pass({"--why"}));
        CHECK_THAT(output.err, mentions(":2: reclaim.idel: there is no such key; did you mean 'idle'?"));
        CHECK_THAT(output.out, mentions("now: to host memory"));
        REQUIRE(::chmod(own.c_str(), 0666) == 0);
        output = pass();
        CHECK(output.status == 0);
        CHECK_THAT(output.err, mentions("users other than its owner may write to it"));
        CHECK(host.state() == "asleep");
    }
    SECTION("another user is told nothing of the process") {
        const auto asked = [&](Arguments more) {
            Arguments words{
                "setpriv",  "--reuid=61235", "--regid=61235", "--clear-groups", stage.file("gpu-reclaim"),
                "--config", config,          "--why",         "--json"};
            return run({with(std::move(words), more), {"HOME=" + scratch.path().string()}});
        };
        const auto all = ended(asked({}));
        CHECK(all.err.empty());
        CHECK(all.json("/processes/0") == "none");
        CHECK(asked({std::to_string(host.pid())}).status == 5);
        CHECK(pass({"--why", "--json"}).json("/processes/0/state") == "awake");
    }
    SECTION("it is a link to what root alone may read: nothing of that is used or shown") {
        write_file(scratch.path() / "secret", "[reclaim]\nsecret = \"swordfish\"\n");
        REQUIRE(::chmod(scratch.file("secret").c_str(), 0600) == 0);
        std::filesystem::create_directories(own.parent_path());
        std::filesystem::create_symlink(scratch.file("secret"), own);
        CHECK_THAT(pass().err, mentions("it belongs to somebody else") && !mentions("swordfish"));
        CHECK(host.state() == "asleep");
    }
    host.tell("spin 1");
    CHECK(host.tell("check_all") == "intact");
}
