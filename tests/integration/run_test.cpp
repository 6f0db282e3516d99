// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-run: what it starts, with what environment, what it refuses, and what it costs.

#include "support/host.hpp"
#include "support/tree.hpp"

#include <spawn.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

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
    const auto done = ended(run(gpu_run(with(std::move(options), {"--", "env"}), std::move(environment))));
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

/// What a run of `command` computed, with one more `variable`; others on this machine cannot add to that by
/// being in the way.
double processor_ms_of(Arguments command, std::string variable = {}) {
    std::vector<char*> words;
    for (auto& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    std::vector<char*> environment;
    if (!variable.empty()) environment.push_back(variable.data());
    for (char** inherited = ::environ; *inherited; ++inherited) environment.push_back(*inherited);
    environment.push_back(nullptr);
    pid_t pid = 0;
    REQUIRE(::posix_spawn(&pid, words.front(), nullptr, nullptr, words.data(), environment.data()) == 0);
    int status = -1;
    rusage usage{};
    REQUIRE(::wait4(pid, &status, 0, &usage) == pid);
    REQUIRE(status == 0);
    const auto milliseconds = [](const timeval& value) {
        return static_cast<double>(value.tv_sec) * 1e3 + static_cast<double>(value.tv_usec) / 1e3;
    };
    return milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime);
}

double quickest(const std::vector<double>& values) {
    return *std::min_element(values.begin(), values.end());
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
    struct Row {
        Arguments words;
        const char* name;
        const char* value;
    };
    const std::vector<Row> rows = {{{"--name", "llama"}, "NAME", "llama"},
                                   {{"--tag=weights"}, "TAG", "weights"},
                                   {{"--min-size", "64KiB"}, "MIN_SIZE", "65536"},
                                   {{"--rules", "lib=libx,capture=0"}, "RULES", "lib=libx,capture=0"},
                                   {{"--on-touch", "wake"}, "ON_TOUCH", "wake"},
                                   {{"--touch-limit", "1.5s"}, "TOUCH_LIMIT", "1500"},
                                   {{"--keep-gil"}, "RELEASE_GIL", "0"},
                                   {{"--gate", "checked"}, "GATE", "checked"},
                                   {{"--retain", "2GiB"}, "RETAIN", "2147483648"},
                                   {{"--prepare"}, "PREPARE", "10"},
                                   {{"--on-stop", "sleep"}, "ON_STOP", "sleep"},
                                   {{"--stop-grace", "2s"}, "STOP_GRACE", "2000"},
                                   {{"--make-room"}, "MAKE_ROOM", "1"},
                                   {{"--min-awake", "2s"}, "MIN_AWAKE", "2000"},
                                   {{"--idle", "15m"}, "IDLE", "900000"},
                                   {{"--deep"}, "IDLE_DEEP", "1"},
                                   {{"--store", "file,kv_cache=host"}, "IDLE_STORE", "file,kv_cache=host"},
                                   {{"--dir", "/here/../there"}, "IDLE_DIR", "/there"}};
    Arguments options;
    for (const auto& row : rows) options.insert(options.end(), row.words.begin(), row.words.end());
    const auto all = environment_after(options);
    for (const auto& row : rows) {
        const auto variable = fmt::format("GPU_SLEEP_{}", row.name);
        CHECK(value_in(plain, variable) == "none");
        CHECK(value_in(all, variable) == row.value);
    }
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
    const auto nested = ended(run(
        gpu_run({"--name", "outer", "--tag", "a", "--", command_file("gpu-run"), "--name", "inner", "env"})));
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

TEST_CASE("Run: a program that brings the address sanitizer as a library starts", "[run]") {
    const Scratch place;
    const auto program = place.file("program");
    std::ofstream(place.file("program.c")) << "int main(void) { return 7; }";
    const Arguments build{"gcc", "-fsanitize=address", "-o", program, place.file("program.c")};
    if (is_sanitized() || run({build}).status != 0) return skip("there is no such program here");
    const auto alone = ended(run({{program}}), 7);
    const auto login = fs::path(preloaded_agent()).parent_path() / "libgpu-sleep-login.so";
    for (const auto& launch :
         {gpu_run({"--", program}), Launch{{program}, {"LD_PRELOAD=" + login.native()}}}) {
        CHECK(ended(run(launch), 7).err == alone.err);
    }
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
    CHECK(ended(run(gpu_run(
                    {"--", "sh", "-c", "printf '%s|' \"$@\"; exit 41", "sh", "--name", "a b", "--", ""})),
                41)
              .out == "--name|a b|--||");
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

TEST_CASE("Run: it says so where the environment turns the agent off", "[run]") {
    check_ended(run(gpu_run({"true"}, {"GPU_SLEEP_DISABLE=1"})), 0, mentions("turns the agent off"));
    CHECK(run(gpu_run({"true"}, {"GPU_SLEEP_DISABLE=0"})).err.empty());
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
    check_ended(outcome(04755), 2, mentions("set-user-id"));
    const auto missing = ended(run(gpu_run({"--", "no-such-command-here"})), 127);
    CHECK(run(gpu_run({scratch.path()})).status == 126);
}

TEST_CASE("Run: without the agent beside it, or where the loader cannot find it, it says so", "[run]") {
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
    const auto missing = ended(outcome("missing", false), 1);
    CHECK_THAT(missing.err, mentions("libgpu-sleep-agent.so is missing"));
    check_ended(outcome("a b", true), 1, mentions("' '"));
}

TEST_CASE("Run: without CUDA a program starts as fast within 2 ms, and in a login within 0.3 ms", "[timed]") {
    if (is_sanitized()) return skip("a sanitizer takes longer to start");
    constexpr int k_runs = 50;
    std::vector<double> plain, in_login, with_agent, by_gpu_run;
    for (int i = 0; i < k_runs; ++i) {
        plain.push_back(processor_ms_of({"/bin/true"}));
        in_login.push_back(
            processor_ms_of({"/bin/true"}, "LD_PRELOAD=" + library_file("libgpu-sleep-login.so")));
        with_agent.push_back(processor_ms_of({"/bin/true"}, "LD_PRELOAD=" + preloaded_agent()));
        by_gpu_run.push_back(processor_ms_of({command_file("gpu-run"), "/bin/true"}));
    }
    // Where a program that does nothing takes more than a millisecond, the others may take more, too.
    const double slowness = std::max(1.0, quickest(plain));
    CHECK(quickest(in_login) - quickest(plain) < 0.3 * slowness);
    CHECK(quickest(with_agent) - quickest(plain) < 2 * slowness);
    CHECK(quickest(by_gpu_run) - quickest(plain) < 4 * slowness); // a build for tests is not optimised
}
