// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent by the login environment: programs that nobody starts by gpu-run.

#include "intercepted_host.hpp"
#include "support/files_of.hpp"
#include "support/other_user.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
}

/// Every file, directory and link below `root`, with its mode, and what is in it.
std::map<std::string, std::string> tree_of(const fs::path& root) {
    std::map<std::string, std::string> tree;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
        struct stat status = {};
        REQUIRE(::lstat(entry.path().c_str(), &status) == 0);
        auto& text = tree[fs::relative(entry.path(), root)];
        text = std::to_string(status.st_mode) + ' ';
        if (entry.is_symlink())
            text += fs::read_symlink(entry.path());
        else if (entry.is_regular_file())
            text += content_of(entry.path());
    }
    return tree;
}

/// A home directory, and what a login there has in its environment besides what tests need.
struct Home {
    Scratch scratch;

    [[nodiscard]] Arguments environment() const {
        const char* libraries = std::getenv("LD_LIBRARY_PATH");
        return {"HOME=" + scratch.path().native(), "PATH=/usr/bin:/bin", "SHELL=/bin/bash",
                std::string("LD_LIBRARY_PATH=") + (libraries ? libraries : "")};
    }
    [[nodiscard]] Launch launch(Arguments command, Arguments variables = {}) const {
        return {std::move(command), with(std::move(variables), environment()), false};
    }
    [[nodiscard]] Output command(Arguments words, Arguments variables = {}) const {
        words.front() = command_file(words.front());
        return run(launch(std::move(words), std::move(variables)));
    }
    void enable() const { REQUIRE(succeeded(command({"gpu-enable", "user"}))); }
    /// A login shell's `words`.
    [[nodiscard]] Launch login(Arguments words, Arguments variables = {}) const {
        Arguments command{"/bin/bash", "-l", "-c", R"(exec "$@")", "bash"};
        return launch(with(std::move(command), words), std::move(variables));
    }
};

std::string login_library() {
    return library_file("libgpu-sleep-login.so");
}

void check_sleeps_and_wakes(Host& host) {
    const auto piece = make_piece(host, "plain", k_piece_bytes);
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK(host.state() == "asleep");
    REQUIRE(host.command("gpu-wake").status == 0);
    check_intact(host, piece);
    check_no_harm(host);
}

/// It works, and nobody sees it.
void check_left_alone(Host& host) {
    const auto piece = make_piece(host, "plain", k_piece_bytes);
    CHECK(host.command("gpu-sleep").status == 3);
    check_intact(host, piece);
    check_no_harm(host);
}

constexpr const char* k_kernel = R"({"argv": ["python3"], "language": "python", "display_name": "P"})";

} // namespace

TEST_CASE("Login: what an ordinary user starts is put to sleep by root's cron, and wakes", "[login]") {
    const Home home;
    home.enable();
    auto launch = home.login({command_file(k_runtime.program)}, {k_runtime.variable});
    if (::geteuid() == 0) {
        const auto user = std::to_string(k_other_user);
        const auto program = command_file(k_runtime.program);
        if (!as_user(k_other_user, [&] { return ::access(program.c_str(), X_OK) == 0; }))
            return skip_without_right("give another user the tests' programs here");
        REQUIRE(run({{"chown", "-R", user + ':' + user, home.scratch.path().native()}}).status == 0);
        launch.command.insert(launch.command.begin(),
                              {"setpriv", "--reuid", user, "--regid", user, "--clear-groups"});
    }
    Host host(launch);
    const auto piece = make_piece(host, "plain", k_piece_bytes);
    REQUIRE(becomes_true([&] { return std::strtod(host.report("idle_seconds").c_str(), nullptr) > 0.05; }));
    CHECK(succeeded(
        run({{"/bin/sh", "-c", command_file("gpu-reclaim") + " --idle 10ms " + std::to_string(host.pid())},
             {"PATH=/usr/bin:/bin"},
             false})));
    CHECK(host.state() == "asleep");
    check_intact(host, piece); // which touches it
    CHECK(host.state() == "awake");
    check_no_harm(host);
}

TEST_CASE("Login: programs are reached whichever way they reach libcuda", "[login]") {
    const auto& way = GENERATE(k_linked, k_dlsym, k_late, k_runtime, k_per_thread);
    INFO(way.name);
    const Home home;
    home.enable();
    Host host(home.login({command_file(way.program)}, {way.variable}));
    check_sleeps_and_wakes(host);
}

TEST_CASE("Login: gpu-run inside a login, and a program's own agent, are there once", "[login]") {
    const Home home;
    home.enable();
    const auto variables = run(home.login({command_file("gpu-run"), "--name", "n", "env"})).out;
    CHECK_THAT(variables, mentions("libgpu-sleep-agent.so"));
    CHECK_THAT(variables, !mentions("libgpu-sleep-login.so"));
    LoadedHost host(home.login({command_file("integration_host")}));
    CHECK(host.command("gpu-sleep").status == 0);
    host.wake_whole();
    // Behind the agent the library stands aside.
    Host both(Launch{
        {command_file(k_runtime.program)},
        {k_runtime.variable, "GPU_SLEEP_CAPTURE=1", "LD_PRELOAD=" + agent_file() + ':' + login_library()}});
    check_sleeps_and_wakes(both);
}

TEST_CASE("Login: a program that never uses CUDA gets neither the agent nor a driver", "[login]") {
    const Home home;
    home.enable();
    const auto mapped = run(home.login({"grep", "-c", "libgpu-sleep-agent", "/proc/self/maps"}));
    CHECK(mapped.out == "0\n");
    CHECK(mapped.err.empty());
    const auto python = run(
        home.login({"python3", "-c",
                    "import ctypes\n"
                    "own = ctypes.CDLL(None)\n"
                    "print(hasattr(own, 'cuInit'), hasattr(own, 'cuMemAlloc_v2'), hasattr(own, 'getpid'))\n"
                    "print('libgpu-sleep-agent' in open('/proc/self/maps').read())"}));
    if (python.status == 127) return skip("there is no Python");
    CHECK(python.err.empty());
    CHECK(python.out == "False False True\nFalse\n");
}

TEST_CASE("Login: programs with a sanitizer in them run as they would", "[login]") {
    const Scratch scratch;
    write(scratch.path() / "a.c",
          "#include <stdio.h>\n#include <stdlib.h>\n"
          "int main(int n, char** v) { char* p = malloc(3); free(p); return n > 1 ? p[n] : 7; }\n");
    const auto& sanitizer = GENERATE(as<std::string>(), "address", "undefined", "thread");
    INFO(sanitizer);
    const auto program = scratch.file("a");
    if (run({{"cc", "-w", "-O0", "-fsanitize=" + sanitizer, "-o", program, scratch.file("a.c")}}).status != 0)
        return skip("the compiler has no such sanitizer");
    const Arguments variables{"LD_PRELOAD=" + login_library(), "GPU_SLEEP_CAPTURE=1"};
    CHECK(ended(run({{"setarch", "-R", program}, variables}), 7).err.empty());
    if (sanitizer != "address") return;
    CHECK_THAT(run({{"setarch", "-R", program, "1"}, variables}).err, mentions("heap-use-after-free"));
}

TEST_CASE("Login: GPU_SLEEP_DISABLE and the deny lists are ways out", "[login]") {
    const Home home;
    home.enable();
    const auto& way = GENERATE(k_linked, k_runtime);
    const auto list = home.scratch.path() / ".config/gpu-sleep.deny";
    Arguments variables{way.variable};
    SECTION("by the environment of the login") {
        variables.emplace_back("GPU_SLEEP_DISABLE=1");
    }
    SECTION("by its name") {
        write(list, std::string("# mine\n") + way.program + "\n");
    }
    SECTION("by the user's directory for configurations") {
        variables.push_back("XDG_CONFIG_HOME=" + home.scratch.file("elsewhere"));
        write(home.scratch.path() / "elsewhere/gpu-sleep.deny", "intercepted*");
    }
    Host host(home.login({command_file(way.program)}, variables));
    check_left_alone(host);
    CHECK(host.process().errors().empty());
}

TEST_CASE("Login: the machine's deny list counts for everybody, and no deny list is needed", "[login]") {
    const Home home;
    home.enable();
    const Scratch etc;
    REQUIRE(run({{"cp", "-a", "/etc/.", etc.path().native()}}).status == 0);
    const bool is_denied = GENERATE(false, true);
    if (is_denied) write(etc.path() / "gpu-sleep.deny", "intercepted_program_runtime\n");
    auto launch = home.login({command_file(k_runtime.program)}, {k_runtime.variable});
    const Arguments apart{
        "unshare", "--mount", "sh", "-c", "mount --bind " + etc.path().native() + R"( /etc && exec "$@")",
        "sh"};
    auto probe = apart;
    probe.emplace_back("true");
    if (run({probe}).status != 0) return skip_without_right("mount file systems");
    launch.command.insert(launch.command.begin(), apart.begin(), apart.end());
    Host host(launch);
    if (is_denied)
        check_left_alone(host);
    else
        check_sleeps_and_wakes(host);
}

TEST_CASE("Login: GPU_SLEEP_DISABLE is a way out of gpu-run, too", "[login]") {
    auto launch = captured_launch(k_runtime, {"GPU_SLEEP_DISABLE=1"});
    Host host(launch);
    check_left_alone(host);
    launch.environment.front() = "GPU_SLEEP_DISABLE=0";
    Host other(launch);
    check_sleeps_and_wakes(other);
}

TEST_CASE("Login: an agent that is missing or not loadable fails no program; that says so once", "[login]") {
    const Scratch scratch;
    fs::copy_file(login_library(), scratch.path() / "libgpu-sleep-login.so");
    const bool is_broken = GENERATE(false, true);
    if (is_broken) write(scratch.path() / "libgpu-sleep-agent.so", "no library");
    const auto& way = GENERATE(k_linked, k_dlsym, k_late, k_runtime);
    INFO(way.name);
    Host host(Launch{{command_file(way.program)},
                     {way.variable, "LD_PRELOAD=" + scratch.file("libgpu-sleep-login.so")}});
    check_left_alone(host);
    const auto said = host.process().errors();
    CHECK_THAT(said, mentions("gpu-sleep: this process cannot be put to sleep: "));
    CHECK_THAT(said, mentions(is_broken ? "libgpu-sleep-agent.so: file too short"
                                        : "libgpu-sleep-agent.so: cannot open"));
    CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("Login: where the library is missing nothing is printed, nor in containers", "[login]") {
    const Home home;
    const auto prefix = home.scratch.path() / "prefix";
    fs::create_directories(prefix / "bin");
    fs::create_directories(prefix / "lib");
    fs::copy_file(command_file("gpu-enable"), prefix / "bin/gpu-enable");
    fs::copy_file(login_library(), prefix / "lib/libgpu-sleep-login.so");
    REQUIRE(run(home.launch({prefix / "bin/gpu-enable", "user"})).status == 0);
    const auto preloaded = [&](const Arguments& command, const Arguments& variables = {}) {
        const auto done =
            run(home.login(with(command, {"sh", "-c", "printf %s \"${LD_PRELOAD-none}\""}), variables));
        CHECK(done.err.empty());
        return done.out;
    };
    const auto library = (prefix / "lib/libgpu-sleep-login.so").native();
    CHECK(preloaded({}) == library);
    // Under the name by which a container is entered.
    for (const auto* name : {"apptainer", "podman", "bwrap"}) {
        write(home.scratch.file(name), "#!/bin/sh\nexec \"$@\"\n");
        REQUIRE(::chmod(home.scratch.file(name).c_str(), 0755) == 0);
        CHECK(preloaded({home.scratch.file(name)}) == "none");
        CHECK(preloaded({home.scratch.file(name)}, {"LD_PRELOAD=libm.so.6:libc.so.6"}) ==
              "libm.so.6:libc.so.6");
    }
    fs::remove(library);
    CHECK(preloaded({}) == "none");
}

TEST_CASE("Login: enabling is idempotent, and disabling restores every byte", "[login]") {
    const Home home;
    const auto& path = home.scratch.path();
    write(path / ".bash_profile", "export A=1"); // without an end of its line
    REQUIRE(::chmod((path / ".bash_profile").c_str(), 0600) == 0);
    write(path / "dotfiles/profile", "export B=1\n");
    fs::create_symlink("dotfiles/profile", path / ".profile");
    write(path / ".local/share/jupyter/kernels/python3/kernel.json", k_kernel);
    write(path / ".local/share/jupyter/kernels/r/kernel.json", R"({"language": "R"})");
    write(path / "venv/share/jupyter/kernels/python3/kernel.json", std::string(k_kernel) + "\n\n");
    const auto venv = "VIRTUAL_ENV=" + (path / "venv").native();
    write(path / "tools/share/jupyter/kernels/python3/kernel.json", k_kernel);
    write(path / "tools/bin/jupyter", "");
    REQUIRE(::chmod((path / "tools/bin/jupyter").c_str(), 0755) == 0);
    const auto search_path = "PATH=" + (path / "tools/bin").native() + ":/usr/bin:/bin"; // the first counts
    const auto before = tree_of(path);
    const auto told = ended(home.command({"gpu-enable", "user"}, {venv, search_path}));
    CHECK(told.out.ends_with("\nundo: gpu-enable user --off\n"
                             "programs that are already running have no agent until you restart them\n"));
    const auto once = tree_of(path);
    CHECK(once != before);
    home.enable();
    CHECK(tree_of(path) == once);
    for (const auto* file :
         {".bash_profile", ".profile", ".config/gpu-sleep/login.sh",
          ".config/environment.d/60-gpu-sleep.conf", "venv/share/jupyter/kernels/python3/kernel.json"}) {
        INFO(file);
        CHECK_THAT(told.out, mentions((path / file).native()));
        CHECK_THAT(content_of(path / file), mentions("gpu-sleep"));
        CHECK_THAT(home.command({"gpu-enable", "--show"}).out, mentions((path / file).native()));
    }
    const auto undone = home.command({"gpu-enable", "user", "--off"}); // without the variable, too
    CHECK(undone.out.ends_with("\nundo: gpu-enable user\n"));
    CHECK(tree_of(path) == before);
    CHECK(home.command({"gpu-enable", "user", "--off"}).status == 0);
    CHECK(tree_of(path) == before);
    CHECK_THAT(home.command({"gpu-enable", "--show"}).out, mentions("user: not enabled"));
}

TEST_CASE("Login: what was enabled in another environment is shown, and disabled, in any", "[login]") {
    const Home home;
    const auto& path = home.scratch.path();
    const Arguments elsewhere{"XDG_CONFIG_HOME=" + (path / "config").native(),
                              "ZDOTDIR=" + (path / "zsh").native(), "SHELL=/bin/zsh"};
    write(path / "zsh/.zprofile", "export A=1\n");
    const bool is_made = GENERATE(false, true);
    if (is_made) fs::remove(path / "zsh/.zprofile");
    const auto before = tree_of(path);
    REQUIRE(home.command({"gpu-enable", "user"}, elsewhere).status == 0);
    CHECK_THAT(content_of(path / "zsh/.zprofile"), mentions("gpu-sleep"));
    const auto shown = home.command({"gpu-enable", "--show"}).out;
    for (const auto* file : {"zsh/.zprofile", "config/environment.d/60-gpu-sleep.conf"})
        CHECK_THAT(shown, mentions((path / file).native()));
    CHECK(home.command({"gpu-enable", "user", "--off"}).status == 0);
    CHECK(tree_of(path) == before);
}

TEST_CASE("Login: what is not ours is neither overwritten nor removed", "[login]") {
    const Home home;
    const auto file = home.scratch.path() / ".config/gpu-sleep/login.sh";
    write(file, "echo mine\n");
    check_ended(home.command({"gpu-enable", "user"}), 2, mentions("gpu-sleep did not write it"));
    CHECK(home.command({"gpu-enable", "user", "--off"}).status == 0);
    CHECK(content_of(file) == "echo mine\n");
    check_ended(run({{command_file("gpu-enable"), "user"}, {"HOME=/nonexistent"}}), 2,
                mentions("HOME names no directory"));
    if (::geteuid() != 0) return skip_without_right("act as root");
    const Home other;
    REQUIRE(::chown(other.scratch.path().c_str(), k_other_user, k_other_user) == 0);
    check_ended(other.command({"gpu-enable", "user"}), 2, mentions("belongs to another user"));
    CHECK(other.scratch.file_count() == 0);
}

TEST_CASE("Login: where a file cannot be changed nothing is left", "[login]") {
    const Home home;
    const auto profile = home.scratch.path() / ".profile";
    const std::string what = GENERATE("directory", "pipe", "link");
    if (what == "directory") fs::create_directory(profile);
    if (what == "pipe") REQUIRE(::mkfifo(profile.c_str(), 0600) == 0);
    if (what == "link") fs::create_symlink("/nonexistent/profile", profile);
    const auto refused = home.command({"gpu-enable", "user"});
    INFO(what << ": " << refused.err);
    CHECK(refused.status != 0);
    CHECK_THAT(refused.err, mentions(profile.native()));
    CHECK_FALSE(fs::exists(home.scratch.path() / ".config/gpu-sleep"));
    CHECK_FALSE(fs::exists(home.scratch.path() / ".config/environment.d"));
}

TEST_CASE("Login: where a directory cannot be made nothing is left", "[login]") {
    const Home home;
    const auto refused = home.command({"gpu-enable", "user"}, {"XDG_CONFIG_HOME=/proc/nothing"});
    CHECK(refused.status != 0);
    CHECK_THAT(refused.err, mentions("/proc/nothing"));
    CHECK_FALSE(fs::exists(home.scratch.path() / ".config"));
}

TEST_CASE("Login: a root that was mistyped is not made", "[login]") {
    const Scratch images;
    const Arguments what = GENERATE(Arguments{"machine"}, Arguments{"machine", "--off"},
                                    Arguments{"containers"}, Arguments{"--show"});
    Arguments words{command_file("gpu-enable"), "--root", images.file("imgae")};
    words.insert(words.end(), what.begin(), what.end());
    check_ended(run({words}), 2, mentions("imgae/: No such file or directory"));
    CHECK_FALSE(fs::exists(images.path() / "imgae"));
}

TEST_CASE("Login: the machine's files are read by shells and by systemd", "[login]") {
    const Scratch image;
    write(image.path() / "usr/share/jupyter/kernels/python3/kernel.json", k_kernel);
    const auto before = tree_of(image.path());
    const auto done = ended(run({{command_file("gpu-enable"), "machine", "--root", image.path().native()}}));
    CHECK_THAT(content_of(image.path() / "usr/share/jupyter/kernels/python3/kernel.json"),
               mentions(login_library()));
    CHECK_THAT(done.out, mentions("kernels/python3/kernel.json\n") && mentions("c.Spawner.cmd") &&
                             mentions("lacks " + login_library()));
    const auto variables = [&](const std::string& script, const Arguments& given = {}) {
        auto output = ended(run({{"/bin/sh", "-c", script}, given, false}));
        CHECK(output.err.empty());
        return output.out;
    };
    const auto profile = ". " + image.file("etc/profile.d/gpu-sleep.sh") + "; ";
    const auto shown = R"(printf %s "$LD_PRELOAD")";
    CHECK(variables(profile + profile + shown) == login_library());
    CHECK(variables(profile + shown, {"LD_PRELOAD=libm.so.6"}) == login_library() + ":libm.so.6");
    CHECK(variables(profile + shown, {"GPU_SLEEP_DISABLE=1"}).empty());
    const auto generator = image.file("etc/systemd/user-environment-generators/60-gpu-sleep");
    CHECK(variables(generator) == "LD_PRELOAD=" + login_library() + "\n");
    CHECK(variables(generator, {"LD_PRELOAD=libm.so.6"}) == "LD_PRELOAD=" + login_library() + ":libm.so.6\n");
    CHECK(variables(generator, {"LD_PRELOAD=" + login_library()}).empty());
    // A copy of an image is disabled by itself.
    const Scratch copies;
    const auto copy = copies.path() / "copy";
    fs::copy(image.path(), copy, fs::copy_options::recursive);
    const auto enabled = tree_of(image.path());
    CHECK(run({{command_file("gpu-enable"), "machine", "--off", "--root", copy.native()}}).status == 0);
    CHECK_THAT(content_of(copy / "usr/share/jupyter/kernels/python3/kernel.json"),
               !mentions(login_library()));
    CHECK_FALSE(fs::exists(copy / "etc/profile.d/gpu-sleep.csh"));
    CHECK(tree_of(image.path()) == enabled);
    if (::geteuid() != 0) return skip_without_right("act as another user");
    fs::permissions(image.path(), fs::perms(0755));
    const auto other_user = [](Arguments words) {
        words.insert(words.begin(), {"setpriv", "--reuid", std::to_string(k_other_user), "--clear-groups",
                                     command_file("gpu-enable"), "machine"});
        return run({std::move(words)});
    };
    CHECK_THAT(other_user({"--show", "--root", image.path().native()}).out,
               mentions("kernels/python3/kernel.json"));
    check_ended(other_user({"--off"}), 5, mentions("sudo gpu-enable machine --off"));
}
