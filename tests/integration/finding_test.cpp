// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding a process by its pid alone: whatever became of its socket, wherever it runs, whoever forked it.

#include "empty_tmp.hpp"
#include "support/host.hpp"

#include "base/process.hpp"

using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

Output sleep_process(const std::string& pid, Arguments environment = {}) {
    return run({{command_file("gpu-sleep"), pid, "--json"}, std::move(environment)});
}

/// Starts `program` in user, pid and mount namespaces of its own. `options` are further ones of unshare, and
/// `first` is a command that is run there before it.
Launch in_namespaces(const std::string& program, Arguments options, const std::string& first = "true") {
    Arguments command{"unshare", "--user", "--pid", "--fork", "--kill-child", "--mount"};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"sh", "-c", first + " && exec \"$0\" \"$@\"", program});
    return {std::move(command)};
}

/// In namespaces with an empty /tmp and a /proc of their own, as a container has them.
Launch in_container(const std::string& program) {
    return in_namespaces(program, {"--map-root-user", "--mount-proc"}, mount_empty_tmp());
}

/// Whether a test may make namespaces; else it is skipped.
bool has_namespaces() {
    if (run(in_container("true")).status == 0) return true;
    return skip_without_right("make namespaces"), false;
}

/// A child of the host program, and what its allocation came to; see the host's `fork`.
struct Child {
    std::string pid;
    int status = 0;
};

Child fork_child(Host& host, const std::string& mode) {
    Child child;
    std::istringstream(host.tell("fork " + mode)) >> child.pid >> child.status;
    return child;
}

} // namespace

TEST_CASE("Finding: a socket that was removed is made again within seconds", "[quick][finding]") {
    LoadedHost host;
    REQUIRE(fs::remove(socket_file(host.pid())));
    CHECK(host.command("gpu-sleep").status == 3);
    REQUIRE(becomes_true([&] { return fs::exists(socket_file(host.pid())); }));
    CHECK(becomes_true([&] { return host.command("gpu-sleep").status == 0; }, Milliseconds(5000)));
    host.wake_whole();
}

TEST_CASE("Finding: who closes all descriptors stays under control, and keeps later ones", "[finding]") {
    LoadedHost host;
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK(host.tell("usurp_sockets") != "0");
    CHECK(becomes_true([&] { return host.command("gpu-wake").status == 0; }, Milliseconds(5000)));
    CHECK(host.tell("check_all") == "intact");
    const auto child = host.tell("fork");
    CHECK(host.tell("usurped") == "unharmed");
    CHECK(host.command("gpu-sleep").status == 0);
}

TEST_CASE("Finding: a process that was killed leaves a socket which the next one removes", "[finding]") {
    std::string stale;
    pid_t killed = 0;
    {
        LoadedHost host;
        stale = socket_file(host.pid());
        killed = host.pid();
        REQUIRE(fs::exists(stale));
        host.cycle();
        REQUIRE(fs::exists(stale + k_state_suffix));
        host.kill();
    }
    CHECK(sleep_process(std::to_string(killed)).status == 3);
    const auto orphan = fs::path(stale).parent_path() / (agent_socket_name(killed, 1) + k_state_suffix);
    std::ofstream(orphan) << "{}";
    LoadedHost next;
    CHECK_FALSE(fs::exists(stale));
    CHECK_FALSE(fs::exists(stale + k_state_suffix));
    CHECK_FALSE(fs::exists(orphan));
    CHECK(next.command("gpu-sleep").status == 0);
}

TEST_CASE("Finding: a child of fork has no agent, and its parent stays under control", "[finding]") {
    LoadedHost host;
    CHECK(sleep_process(fork_child(host, "").pid).status == 3);
    CHECK(fork_child(host, "alloc").status != 0); // CUDA is lost for it, and it is told so
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK(fork_child(host, "").status == 0); // and of a sleeping parent
    host.wake_whole();
    CHECK(fs::exists(socket_file(host.pid())));
}

TEST_CASE("Finding: a program that replaces itself has no agent until it uses CUDA again", "[finding]") {
    LoadedHost host;
    REQUIRE(host.command("gpu-sleep").status == 0);
    REQUIRE(host.ask("exec") == "ready");
    CHECK(host.command("gpu-wake").status == 3);
    host.tell("alloc weights 4194304 0");
    CHECK(host.state() == "awake");
    CHECK(host.command("gpu-sleep").status == 0);
    host.wake_whole();
}

TEST_CASE("Finding: a process in namespaces of its own is found by its pid outside", "[finding]") {
    if (!has_namespaces()) return;
    const auto program = command_file("integration_host");
    const bool has_proc = GENERATE(true, false); // or process 1 of the /proc that it sees is another
    LoadedHost container(has_proc ? in_container(program)
                                  : in_namespaces(program, {"--map-root-user"}, mount_empty_tmp()));
    CHECK(container.tell("pid") == "1");
    const auto listed = ended(container.command("gpu-ps", {"--json"})); // by its ancestor, which is outside
    if (has_proc) CHECK(listed.json("/processes/0/namespace_pid") == "1");
    const auto pid = listed.json("/processes/0/pid");
    CHECK(pid != std::to_string(container.pid()));
    CHECK(ended(sleep_process(pid)).json("/processes/0/pid") == pid);
    CHECK(container.tell("asleep") == "4194304");
    CHECK(run({{command_file("gpu-wake"), pid}}).status == 0);
    CHECK(container.tell("check_all") == "intact");
}

TEST_CASE("Finding: where pid namespaces share a /tmp, no agent removes the socket of another", "[finding]") {
    if (!has_namespaces()) return;
    const auto program = command_file("integration_host");
    const auto mount = mount_empty_tmp() + " && exec \"$0\"";
    LoadedHost outside(
        Launch{{"unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, program}});
    const auto started = need(start_time_of(outside.pid()));
    const auto socket = fmt::format("/proc/{}/root{}/{}", outside.pid(), agent_directory(0),
                                    agent_socket_name(outside.pid(), started));
    REQUIRE(fs::exists(socket));
    outside.process().signal(SIGSTOP); // it cannot make its socket again
    const Launch in_another{{"nsenter", "--target", std::to_string(outside.pid()), "--user", "--mount",
                             "--preserve-credentials", "unshare", "--pid", "--fork", "--kill-child",
                             "--mount-proc", program}};
    LoadedHost inside(in_another);
    CHECK(inside.tell("pid") == "1");
    CHECK(fs::exists(socket));
    outside.process().signal(SIGCONT);
    CHECK(outside.command("gpu-sleep").status == 0);
    CHECK(outside.tell("asleep") == "4194304");
    CHECK(inside.command("gpu-sleep").status == 0); // by its ancestor, which is outside
    CHECK(inside.tell("asleep") == "4194304");
    // What it leaves when it is killed goes, also with a program in a third one.
    std::vector<fs::path> left;
    for (const auto& file : fs::directory_iterator(fs::path(socket).parent_path()))
        if (file.path().filename().native().starts_with("1-")) left.push_back(file.path());
    CHECK(left.size() == 2); // its socket, and how it stands
    inside.kill();           // its ancestor has ended then, and it does a moment later
    CHECK(becomes_true([&] {
        const LoadedHost next(in_another);
        return std::ranges::none_of(left, [](const fs::path& file) { return fs::exists(file); });
    }));
    CHECK(fs::exists(socket));
}

TEST_CASE("Finding: a program whose umask takes all rights away can be reached", "[finding]") {
    if (!has_empty_tmp()) return;
    // Root's rights would pass any mode.
    LoadedHost host(with_empty_tmp(
        "umask 777 && exec setpriv --inh-caps=-all --bounding-set=-all --no-new-privs \"$0\""));
    CHECK(host.command("gpu-sleep").status == 0);
    host.wake_whole();
}

TEST_CASE("Finding: a cleaned /tmp gets its directory and its socket again", "[finding]") {
    if (!has_namespaces()) return;
    LoadedHost container(
        in_container(command_file("integration_host"))); // its /tmp holds nobody else's sockets
    const auto pid = container.command("gpu-ps", {"--json"}).json("/processes/0/pid");
    const fs::path directory = fmt::format("/proc/{}/root/tmp/gpu-sleep-0", pid);
    REQUIRE(fs::remove_all(directory) == 2);
    CHECK(sleep_process(pid).status == 3);
    REQUIRE(becomes_true([&] { return fs::exists(directory); }));
    CHECK(becomes_true([&] { return sleep_process(pid).status == 0; }, Milliseconds(5000)));
}
