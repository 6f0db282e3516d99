// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-run: what it starts, with what environment, what it refuses, and what it costs.

#include "support/catch.hpp"
#include "support/host.hpp"
#include "support/scratch.hpp"
#include "support/skip.hpp"
#include "support/tree.hpp"

#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

/// The variables in the lines of `env`.
std::map<std::string, std::string> variables_in(const std::string& lines) {
    std::map<std::string, std::string> variables;
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line);)
        if (const auto end = line.find('='); end != std::string::npos)
            variables[line.substr(0, end)] = line.substr(end + 1);
    return variables;
}

/// The environment that a command has when it is started with `options`, without those of the agent's
/// variables that this test inherited.
std::map<std::string, std::string> environment_after(Arguments options, Arguments environment = {}) {
    options.insert(options.end(), {"--", "env"});
    const auto done = run(gpu_run(std::move(options), std::move(environment)));
    INFO(done.err);
    REQUIRE(done.status == 0);
    CHECK(done.err.empty());
    return variables_in(done.out);
}

std::string value_in(const std::map<std::string, std::string>& variables, const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "none" : found->second;
}

std::string preloaded_agent() {
    return fs::canonical(fs::path(agent_file()).parent_path()) / "libgpu-sleep-agent.so";
}

struct Cost {
    double wall_ms = 0; ///< from before it is started until its end is known
    double processor_ms =
        0; ///< what it computed; others on this machine cannot add to that by being in the way
};

/// Of a run of `command`, with one more `variable`, without a pipe or a poll in between.
Cost cost_of(Arguments command, std::string variable = {}) {
    std::vector<char*> words;
    for (auto& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    std::vector<char*> environment;
    if (!variable.empty()) environment.push_back(variable.data());
    for (char** inherited = ::environ; *inherited; ++inherited) environment.push_back(*inherited);
    environment.push_back(nullptr);
    const auto start = Clock::now();
    pid_t pid = 0;
    REQUIRE(::posix_spawn(&pid, words.front(), nullptr, nullptr, words.data(), environment.data()) == 0);
    int status = -1;
    rusage usage{};
    REQUIRE(::wait4(pid, &status, 0, &usage) == pid);
    const auto time = Clock::now() - start;
    REQUIRE(status == 0);
    const auto milliseconds = [](const timeval& value) {
        return static_cast<double>(value.tv_sec) * 1e3 + static_cast<double>(value.tv_usec) / 1e3;
    };
    return {std::chrono::duration<double, std::milli>(time).count(),
            milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime)};
}

struct Costs {
    std::vector<double> wall_ms, processor_ms;

    void add(const Cost& cost) {
        wall_ms.push_back(cost.wall_ms);
        processor_ms.push_back(cost.processor_ms);
    }
};

double quickest(const std::vector<double>& values) {
    return *std::min_element(values.begin(), values.end());
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

} // namespace

TEST_CASE("Run: a setting of the environment that makes no sense is named once, and ignored", "[run]") {
    const auto start = [](Arguments settings) {
        settings.push_back("LD_PRELOAD=" + preloaded_agent());
        return run({{command_file("intercepted_program_linked"), "end"},
                    environment_for_others(std::move(settings))});
    };
    const auto right = start({"GPU_SLEEP_CAPTURE=1", "GPU_SLEEP_ON_TOUCH=wake", "GPU_SLEEP_TOUCH_LIMIT=100",
                              "GPU_SLEEP_MIN_SIZE=1", "GPU_SLEEP_TAG=weights", "GPU_SLEEP_GATE=checked",
                              "GPU_SLEEP_RELEASE_GIL=0", "GPU_SLEEP_INHIBIT=100", "GPU_SLEEP_ON_STOP=sleep",
                              "GPU_SLEEP_STOP_GRACE=100", "GPU_SLEEP_RULES=", "GPU_SLEEP_LOG=warning",
                              "GPU_SLEEP_NAME=" + std::string(62, 'n') + "\xC3\xBC"});
    CHECK(right.status == 7); // its own
    CHECK(right.err.empty());
    const std::vector<std::pair<std::string, std::string>> wrong{{"ON_TOUCH", "foo"},
                                                                 {"TOUCH_LIMIT", "-1"},
                                                                 {"TOUCH_LIMIT", "5s"},
                                                                 {"INHIBIT", "4h"},
                                                                 {"ON_STOP", "nap"},
                                                                 {"STOP_GRACE", "5s"},
                                                                 {"IDLE", "0"},
                                                                 {"IDLE", "15m"},
                                                                 {"MIN_SIZE", "abc"},
                                                                 {"TAG", "bad tag,x"},
                                                                 {"GATE", "zzz"},
                                                                 {"RELEASE_GIL", "yes"},
                                                                 {"MAKE_ROOM", "yes"},
                                                                 {"MIN_AWAKE", "30s"},
                                                                 {"CAPTURE", "true"},
                                                                 {"LOG", "warn"},
                                                                 {"NAME", "4242"},
                                                                 {"NAME", std::string(65, 'n')},
                                                                 {"NAME", std::string(63, 'n') + "\xC3\xBC"},
                                                                 {"TOUCH_LIMIT", "9223372036854775807"},
                                                                 {"MIN_SIZE", "18446744073709551616"}};
    for (const auto& [name, value] : wrong) {
        const auto variable = "GPU_SLEEP_" + name;
        const auto done = start({variable + "=" + value, "GPU_SLEEP_CAPTURE=1"}); // the first counts
        INFO(variable << ": " << done.err);
        CHECK(done.status == 7);
        CHECK_THAT(done.err, mentions(variable + " is ignored: '" + value + "' is not "));
        CHECK(std::count(done.err.begin(), done.err.end(), '\n') == 1);
    }
}

TEST_CASE("Run: the options are the agent's environment", "[quick][run]") {
    const auto plain = environment_after({});
    CHECK(value_in(plain, "LD_PRELOAD") == preloaded_agent());
    CHECK(value_in(plain, "GPU_SLEEP_CAPTURE") == "1");
    for (const auto* name : {"NAME", "TAG", "MIN_SIZE", "RULES", "ON_TOUCH", "TOUCH_LIMIT", "RELEASE_GIL",
                             "GATE", "RETAIN", "PREPARE", "MAKE_ROOM", "MIN_AWAKE", "ON_STOP", "STOP_GRACE",
                             "IDLE", "IDLE_DEEP", "IDLE_STORE", "IDLE_DIR"})
        CHECK(value_in(plain, fmt::format("GPU_SLEEP_{}", name)) == "none");

    const Scratch scratch;
    std::ofstream(scratch.file("rules.json")) << R"({"rules": [{"library": "libx", "capture": false}]})";
    const auto all = environment_after({"--name",
                                        "llama",
                                        "--tag=weights",
                                        "--min-size",
                                        "64KiB",
                                        "--rules",
                                        scratch.file("rules.json"),
                                        "--on-touch",
                                        "wake",
                                        "--touch-limit",
                                        "1.5s",
                                        "--release-gil",
                                        "--gate",
                                        "checked",
                                        "--retain",
                                        "2GiB",
                                        "--prepare",
                                        "--on-stop",
                                        "sleep",
                                        "--stop-grace",
                                        "2s",
                                        "--make-room",
                                        "--min-awake",
                                        "2s",
                                        "--idle",
                                        "15m",
                                        "--deep",
                                        "--store",
                                        "file,kv_cache=host",
                                        "--dir",
                                        "/here/../there"});
    CHECK(value_in(all, "GPU_SLEEP_NAME") == "llama");
    CHECK(value_in(all, "GPU_SLEEP_TAG") == "weights");
    CHECK(value_in(all, "GPU_SLEEP_MIN_SIZE") == "65536");
    CHECK(value_in(all, "GPU_SLEEP_RULES") == "lib=libx,capture=0");
    CHECK(value_in(all, "GPU_SLEEP_ON_TOUCH") == "wake");
    CHECK(value_in(all, "GPU_SLEEP_TOUCH_LIMIT") == "1500");
    CHECK(value_in(all, "GPU_SLEEP_RELEASE_GIL") == "1");
    CHECK(value_in(all, "GPU_SLEEP_GATE") == "checked");
    CHECK(value_in(all, "GPU_SLEEP_RETAIN") == "2147483648");
    CHECK(value_in(all, "GPU_SLEEP_PREPARE") == "10");
    CHECK(value_in(all, "GPU_SLEEP_ON_STOP") == "sleep");
    CHECK(value_in(all, "GPU_SLEEP_STOP_GRACE") == "2000");
    CHECK(value_in(all, "GPU_SLEEP_MAKE_ROOM") == "1");
    CHECK(value_in(all, "GPU_SLEEP_MIN_AWAKE") == "2000");
    CHECK(value_in(all, "GPU_SLEEP_IDLE") == "900000");
    CHECK(value_in(all, "GPU_SLEEP_IDLE_DEEP") == "1");
    CHECK(value_in(all, "GPU_SLEEP_IDLE_STORE") == "file,kv_cache=host");
    CHECK(value_in(all, "GPU_SLEEP_IDLE_DIR") == "/there");
    CHECK(value_in(environment_after({"--idle", "1s", "--dir", "/there"}), "GPU_SLEEP_IDLE_STORE") == "file");

    const auto shared = environment_after({"--share"});
    CHECK(value_in(shared, "GPU_SLEEP_MAKE_ROOM") == "1");
    CHECK(value_in(shared, "GPU_SLEEP_ON_TOUCH") == "wake");

    const auto none = environment_after({"--no-capture", "--keep-gil"});
    CHECK(value_in(none, "GPU_SLEEP_CAPTURE") == "0");
    CHECK(value_in(none, "GPU_SLEEP_RELEASE_GIL") == "0");
}

TEST_CASE("Run: what is preloaded already stays, and the agent is there once", "[run]") {
    CHECK(value_in(environment_after({}, {"LD_PRELOAD=libm.so.6 libdl.so.2"}), "LD_PRELOAD") ==
          preloaded_agent() + ":libm.so.6:libdl.so.2");
    const auto nested = run(
        gpu_run({"--name", "outer", "--tag", "a", "--", command_file("gpu-run"), "--name", "inner", "env"}));
    REQUIRE(nested.status == 0);
    const auto variables = variables_in(nested.out);
    CHECK(value_in(variables, "LD_PRELOAD") == preloaded_agent());
    CHECK(value_in(variables, "GPU_SLEEP_NAME") == "inner");
    CHECK(value_in(variables, "GPU_SLEEP_TAG") == "a");
}

TEST_CASE("Run: with --audit the loader tells of what it binds", "[run]") {
    const auto library = fs::path(preloaded_agent()).parent_path() / "libgpu-sleep-audit.so";
    CHECK(value_in(environment_after({}), "LD_AUDIT") == "none");
    CHECK(value_in(environment_after({"--audit"}), "LD_AUDIT") == library.native());
    CHECK(run(gpu_run({"--audit", "sh", "-c", "exit 4"})).status == 4);
}

TEST_CASE("Run: the agent is in the command and in its children, and shows nothing of itself", "[run]") {
    const auto done =
        run(gpu_run({"sh", "-c", "grep -c libgpu-sleep-agent /proc/self/maps; ls /proc/$$/task | wc -l"}));
    std::istringstream lines(done.out);
    int mappings = 0, threads = 0;
    lines >> mappings >> threads;
    CHECK(mappings > 0);
    CHECK(threads == 1);
    CHECK(done.err.empty());
    CHECK(done.status == 0);
}

TEST_CASE("Run: it is the command that it starts: words, streams and status", "[quick][run]") {
    const auto failed =
        run(gpu_run({"--", "sh", "-c", "printf '%s|' \"$@\"; exit 41", "sh", "--name", "a b", "--", ""}));
    CHECK(failed.status == 41);
    CHECK(failed.out == "--name|a b|--||");
    CHECK(run(gpu_run({"sh", "-c", "kill -TERM $$"})).status == 128 + 15);
    auto copier = Process(gpu_run({"cat"}));
    copier.send("a line");
    CHECK(copier.read_line() == "a line");
    copier.close_input();
    CHECK(copier.wait() == 0);

    const Scratch scratch;
    std::ofstream(scratch.file("script")) << "echo \"$0 $1\"\n"; // without #!: the shell's
    REQUIRE(::chmod(scratch.file("script").c_str(), 0755) == 0);
    CHECK(run(gpu_run({scratch.file("script"), "x"})).out == scratch.file("script") + " x\n");
}

TEST_CASE("Run: a command is found by the name that it was given", "[run]") {
    Host host(environment_for_others(), {command_file("gpu-run"), "--name", "run-test-host", "--"});
    host.tell("alloc weights 4194304");
    const auto listed = run({{command_file("gpu-ps"), "run-test-host", "--json"}});
    REQUIRE(listed.status == 0);
    CHECK(listed.json("/processes/0/pid") == std::to_string(host.pid()));
    CHECK(host.command("gpu-sleep", {"--on-touch", "wake", "--touch-limit", "5s", "--force"}).status == 0);
    CHECK(host.state() == "asleep");
    CHECK(run({{command_file("gpu-wake"), "run-test-host"}}).status == 0);
    CHECK(host.tell("check_all") == "intact");
}

TEST_CASE(
    "Run: a program that puts a tag to sleep itself works on with the others, unless --gate says otherwise",
    "[run]") {
    const bool is_told = GENERATE(false, true);
    Arguments options{command_file("gpu-run")};
    if (is_told) options.insert(options.end(), {"--gate", "shut"});
    options.emplace_back("--");
    Host host(environment_for_others(), std::move(options));
    host.tell("alloc weights 4194304");
    host.tell("alloc kv_cache 4194304");
    const auto gate = [&](const std::string& field) {
        return host.command("gpu-ps", {"--json"}).json("/processes/0/report/gate/" + field);
    };
    for (int round = 0; round < 2; ++round) {
        host.tell("sleep 1 kv_cache");
        CHECK(gate("state") == (is_told ? "shut" : "checked"));
        host.process().send("check 0 0");
        if (is_told) {
            REQUIRE(becomes_true([&] { return gate("waiting_threads") == "1"; }));
            const auto asked = host.command("gpu-sleep", {"--tags", "kv_cache", "--gate", "checked"});
            CHECK_THAT(asked.out, !mentions("nothing to do"));
        }
        CHECK(host.process().read_line() == "ok intact");
        host.process().send("check 1 0");
        REQUIRE(becomes_true([&] { return gate("waiting_threads") == "1"; }));
        CHECK(host.command("gpu-wake").status == 0);
        CHECK(host.process().read_line() == "ok intact");
    }
    CHECK(host.tell("faults") == "0");
}

TEST_CASE("Run: wrong usage ends with 2 and says what is wrong", "[run]") {
    const Scratch scratch;
    std::ofstream(scratch.file("rules.json")) << "{\"rules\": [{\"tag\": 5}]}";
    const std::vector<std::pair<Arguments, std::string>> cases = {
        {{}, "COMMAND is missing"},
        {{"--name", "a"}, "COMMAND is missing"},
        {{"--"}, "COMMAND is missing"},
        {{"--name", "4242", "true"}, "process id"},
        {{"--name", "", "true"}, "name"},
        {{"--name", std::string(64, 'n') + "n", "true"}, "64 bytes"},
        {{"--name", "a", "--name", "b", "true"}, "--name"},
        {{"--tag", "a b", "true"}, "not a tag"},
        {{"--min-size", "3q", "true"}, "not a size"},
        {{"--on-touch", "sleep", "true"}, "wait|wake|fail"},
        {{"--gate", "open", "true"}, "shut|checked"},
        {{"--touch-limit", "soon", "true"}, "not a duration"},
        {{"--touch-limit", "5s", "--on-touch", "wait", "true"}, "--on-touch wake"},
        {{"--stop-grace", "5s", "true"}, "--on-stop sleep"},
        {{"--stop-grace", "5s", "--on-stop", "stop", "true"}, "--on-stop sleep"},
        {{"--idle", "0s", "true"}, "no time at all"},
        {{"--deep", "true"}, "--idle"},
        {{"--dir", "/tmp", "true"}, "--idle"},
        {{"--idle", "1h", "--store", "file", "true"}, "--dir"},
        {{"--idle", "1h", "--no-capture", "true"}, "--no-capture"},
        {{"--enable-for", "user", "true"}, "take no COMMAND"},
        {{"--release-gil", "--keep-gil", "true"}, "--keep-gil"},
        {{"--no-capture", "--tag", "a", "true"}, "--no-capture"},
        {{"--rules", scratch.file("rules.json"), "true"}, "rule 1, tag"},
        {{"--unknown", "true"}, "--unknown"},
    };
    for (const auto& [arguments, words] : cases) {
        const auto refused = run(gpu_run(arguments));
        INFO(words);
        CHECK(refused.status == 2);
        CHECK_THAT(refused.err, mentions(words));
        CHECK(refused.out.empty());
    }
    for (const auto* unreadable : {"/nonexistent", "/"}) {
        const auto refused = run(gpu_run({"--rules", unreadable, "true"}));
        CHECK(refused.status == 2); // 1 would say that the agent is missing
        CHECK_THAT(refused.err, mentions(std::string("gpu-run: --rules: ") + unreadable + ": "));
    }
}

TEST_CASE("Run: a command that cannot be started ends as in a shell, or with 2", "[run]") {
    const Scratch scratch;
    const auto file = scratch.file("program");
    fs::copy_file("/bin/true", file);
    const auto outcome = [&](mode_t mode) {
        REQUIRE(::chmod(file.c_str(), mode) == 0);
        return run(gpu_run({"--", file}));
    };
    CHECK(outcome(0755).status == 0);
    CHECK(outcome(0644).status == 126);
    const auto privileged = outcome(04755);
    CHECK(privileged.status == 2);
    CHECK_THAT(privileged.err, mentions("set-user-id"));
    const auto missing = run(gpu_run({"--", "no-such-command-here"}));
    CHECK(missing.status == 127);
    CHECK_THAT(missing.err, mentions("no-such-command-here"));
    CHECK(run(gpu_run({scratch.path()})).status == 126);
}

TEST_CASE("Run: without the agent beside it, or with it where the loader cannot find it, it says so",
          "[run]") {
    const Scratch scratch;
    const auto outcome = [&](const std::string& directory, bool with_agent) {
        fs::create_directories(scratch.path() / directory / "bin");
        fs::create_directories(scratch.path() / directory / "lib");
        const auto program = scratch.path() / directory / "bin/gpu-run";
        fs::copy_file(command_file("gpu-run"), program);
        if (with_agent) fs::copy_file(agent_file(), scratch.path() / directory / "lib/libgpu-sleep-agent.so");
        return run({{program, "true"}, environment_for_others()});
    };
    CHECK(outcome("moved", true).status == 0);
    const auto missing = outcome("missing", false);
    CHECK(missing.status == 1);
    CHECK_THAT(missing.err, mentions("libgpu-sleep-agent.so is missing"));
    const auto spaced = outcome("a b", true);
    CHECK(spaced.status == 1);
    CHECK_THAT(spaced.err, mentions("' '"));
}

TEST_CASE("Run: a program that never uses CUDA starts within 2 ms as fast, and in a login within 0.3 ms",
          "[timed]") {
    if (is_sanitized()) return skip("a sanitizer takes longer to start");
    constexpr int k_runs = 50;
    Costs plain, in_login, with_agent, by_gpu_run;
    for (int i = 0; i < k_runs; ++i) {
        plain.add(cost_of({"/bin/true"}));
        in_login.add(cost_of({"/bin/true"}, "LD_PRELOAD=" + library_file("libgpu-sleep-login.so")));
        with_agent.add(cost_of({"/bin/true"}, "LD_PRELOAD=" + preloaded_agent()));
        by_gpu_run.add(cost_of({command_file("gpu-run"), "/bin/true"}));
    }
    // Where a program that does nothing takes more than a millisecond, the others may take more, too.
    const double slowness = std::max(1.0, quickest(plain.processor_ms));
    const double limit_ms = 2 * slowness;
    const double login_limit_ms = 0.3 * slowness;
    const double limit_with_command_ms = 4 * slowness; // a command of a build for tests is not optimised
    // On a busy machine the median of the time on the wall says how busy it is; what was computed, and the
    // quickest run, do not.
    INFO("wall, median: plain " << median(plain.wall_ms) << " ms, with the agent "
                                << median(with_agent.wall_ms) << " ms, by gpu-run "
                                << median(by_gpu_run.wall_ms) << " ms");
    CHECK(quickest(in_login.processor_ms) - quickest(plain.processor_ms) < login_limit_ms);
    CHECK(median(with_agent.processor_ms) - median(plain.processor_ms) < limit_ms);
    CHECK(quickest(with_agent.wall_ms) - quickest(plain.wall_ms) < limit_ms);
    CHECK(quickest(by_gpu_run.processor_ms) - quickest(plain.processor_ms) < limit_with_command_ms);
}
