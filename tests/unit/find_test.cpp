// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding one process and its agent. Whom a word of the command line names is in targets_test.cpp.

#include "control/need.hpp"
#include "find_fixture.hpp"

#include <sys/resource.h>

using namespace gpu_sleep;
using namespace gpu_sleep::control;
using namespace std::string_literals;
namespace fs = std::filesystem;

TEST_CASE("Find: a process is read from its status, stat and cmdline", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 40,
              .inner_pid = 7,
              .parent = 12,
              .uid = 1000,
              .start_time = 99,
              .arguments = "python3\0serve.py\0"s});
    const auto process = ProcFs(tree.proc()).read(40);
    REQUIRE(process);
    CHECK(process->pid == 40);
    CHECK(process->inner_pid == 7);
    CHECK(process->parent == 12);
    CHECK(process->uid == 1000);
    CHECK(process->start_time == 99);
    CHECK(process->command == "python3 serve.py");

    tree.add({.pid = 41, .name = "kernel thread"});
    CHECK(ProcFs(tree.proc()).read(41)->command == "[kernel thread]");
    CHECK(ProcFs(tree.proc()).read(42).error().code == ErrorCode::no_process);
    tree.write("proc/44/status", "Name:\tx\nTgid:\t40\nPPid:\t12\nUid:\t1\t1\t1\t1\nNSpid:\t44\n");
    const auto thread = ProcFs(tree.proc()).read(44);
    CHECK(test::error_of(thread).code == ErrorCode::no_process);
    CHECK(thread.error().message == "there is no process 44: it is a thread of process 40");
    tree.write("proc/43/status", "Name:\tx\n");
    CHECK(ProcFs(tree.proc()).read(43).error().code == ErrorCode::io_failed);
    tree.write("proc/meminfo", "");
    CHECK(ProcFs(tree.proc()).list()->size() == 2);
    tree.write("proc/41/stat", "41 (a) thread) I 2 0 0 0 -1 69238880 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0\n");
    CHECK(ProcFs(tree.proc()).list()->size() == 1); // the kernel's own are nobody's
    CHECK(ProcFs(tree.proc()).read(41));
}

TEST_CASE("Find: a process is stopped while its control group is frozen", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 40});
    const ProcFs proc(tree.proc());
    const auto process = test::need(proc.read(40));
    const bool is_old = GENERATE(false, true);
    tree.write("proc/40/cgroup", is_old ? "5:memory:/jobs/7\n4:freezer:/jobs/7\n0::/\n" : "0::/jobs/7\n");
    const std::string file =
        is_old ? "sys/fs/cgroup/freezer/jobs/7/freezer.state" : "sys/fs/cgroup/jobs/7/cgroup.events";
    CHECK_FALSE(proc.is_stopped(process));
    tree.write(file, is_old ? "THAWED\n" : "populated 1\nfrozen 0\n");
    CHECK_FALSE(proc.is_stopped(process));
    const auto* const frozen = is_old ? "FROZEN\n" : "populated 1\nfrozen 1\n";
    const auto thaw = [&](const std::string& group) {
        const auto cgroup = (tree.proc().parent_path() / "sys/fs/cgroup").string();
        return is_old ? fmt::format("write THAWED to {}/freezer/{}/freezer.state", cgroup, group)
                      : fmt::format("write 0 to {}/{}/cgroup.freeze", cgroup, group);
    };
    tree.write(file, frozen);
    CHECK(proc.is_stopped(process));
    CHECK(proc.how_to_go_on(process) == thaw("jobs/7"));
    tree.write(is_old ? "sys/fs/cgroup/freezer/jobs/freezer.state" : "sys/fs/cgroup/jobs/cgroup.events",
               frozen);
    CHECK(proc.how_to_go_on(process) == thaw("jobs")); // without which the other does not go on
}

TEST_CASE("Find: who stopped a process is who can resume it", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 40});
    const ProcFs proc(tree.proc());
    auto process = proc.read(40);
    REQUIRE(process);
    CHECK(proc.how_to_go_on(*process) == "kill -CONT 40, or detach its debugger");
    process->origin.job = "471";
    CHECK(proc.how_to_go_on(*process) ==
          "scontrol resume 471, if Slurm suspended it; else kill -CONT 40, or detach its debugger");
    process->origin.job = "471; rm -r x"; // what a process says is no command to be copied
    CHECK(proc.how_to_go_on(*process) == "kill -CONT 40, or detach its debugger");
}

TEST_CASE("Find: a process that ends while it is looked at is none, or has no more to tell", "[find]") {
    const test::ProcTree tree;
    const auto cannot_be_read = [&](const std::string& file) { // it can be opened, as that of one that ended
        fs::remove(tree.proc() / file);
        fs::create_directory(tree.proc() / file);
    };
    tree.add({.pid = 40, .name = "ending"});
    cannot_be_read("40/cmdline");
    cannot_be_read("40/environ");
    CHECK(ProcFs(tree.proc()).read(40)->command == "[ending]");
    CHECK_FALSE(ProcFs(tree.proc()).variable(40, "HOME"));
    cannot_be_read("40/status");
    CHECK(ProcFs(tree.proc()).read(40).error().code == ErrorCode::no_process);
    CHECK(ProcFs(tree.proc()).list()->empty());
}

TEST_CASE("Find: descendants are found over generations", "[find]") {
    std::vector<Process> processes(5);
    const std::pair<pid_t, pid_t> k_parents[] = {{10, 1}, {11, 12}, {12, 10}, {13, 11}, {14, 1}};
    for (std::size_t i = 0; i < processes.size(); ++i)
        std::tie(processes[i].pid, processes[i].parent) = k_parents[i];
    std::vector<pid_t> found;
    for (const auto& process : descendants_of(10, processes)) found.push_back(process.pid);
    CHECK(found == std::vector<pid_t>{11, 12, 13});
    CHECK(descendants_of(99, processes).empty());
}

TEST_CASE("Find: an agent is found by its process's inner pid and start time", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = ::getpid(), .inner_pid = 7, .start_time = 99});
    const auto agent = add_agent(tree, 7);
    CHECK(connect(tree));
}

TEST_CASE("Find: leftovers of an earlier process are passed over; removed if nobody listens", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = ::getpid(), .inner_pid = 7, .start_time = 99});
    const auto directory = tree.add_agent_directory(k_directory);
    test::leave_stale_socket(directory / agent_socket_name(7, 98));
    test::leave_stale_socket(directory / (agent_socket_name(7, 98) + k_state_suffix)); // as good as a file
    test::leave_stale_socket(directory / agent_socket_name(8, 98));
    const test::FakeAgent other(directory / agent_socket_name(7, 97), answer_status);
    auto finder = finder_of(tree);
    CHECK(code_of(finder.socket_of(*finder.proc().read(::getpid()))) == ErrorCode::no_agent);
    CHECK(code_of(finder.connect(*finder.proc().read(::getpid()))) == ErrorCode::no_agent);
    CHECK_FALSE(fs::exists(directory / agent_socket_name(7, 98)));
    CHECK_FALSE(fs::exists(directory / (agent_socket_name(7, 98) + k_state_suffix)));
    CHECK(fs::exists(directory / agent_socket_name(8, 98))); // not a name of this process: not ours to judge
    CHECK(fs::exists(directory / agent_socket_name(7, 97)));

    test::leave_stale_socket(directory / agent_socket_name(7, 99)); // it may be about to listen
    CHECK(code_of(connect(tree)) == ErrorCode::no_agent);
    CHECK(fs::exists(directory / agent_socket_name(7, 99)));
}

TEST_CASE("Find: a socket of another process does not pass for the agent's", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 1, .start_time = 99}); // the listener is this process, not process 1
    const test::FakeAgent impostor(tree.add_agent_directory(k_directory) / agent_socket_name(1, 99),
                                   answer_status);
    CHECK(code_of(connect(tree, 1)) == ErrorCode::no_agent);
}

TEST_CASE("Find: only private directories of the process's user count, and links do not", "[find]") {
    const OwnTree tree;
    const auto elsewhere = tree.root() / "elsewhere";
    fs::create_directory(elsewhere);
    fs::permissions(elsewhere, fs::perms::owner_all);
    const test::FakeAgent agent(elsewhere / agent_socket_name(::getpid(), 99), answer_status);
    CHECK(code_of(connect(tree)) == ErrorCode::no_agent);
    const auto place = tree.root() / "tmp" / k_directory;
    fs::create_directory_symlink(elsewhere, place);
    CHECK(code_of(connect(tree)) == ErrorCode::no_agent);
    fs::remove(place);
    fs::rename(elsewhere, place);
    CHECK(connect(tree));
    fs::permissions(place, fs::perms::owner_all | fs::perms::group_exec);
    CHECK(code_of(connect(tree)) == ErrorCode::no_agent);
    fs::permissions(place, fs::perms::owner_all);
    tree.add({.pid = ::getpid(), .uid = ::getuid() + 1, .start_time = 99});
    CHECK(code_of(connect(tree)) == ErrorCode::no_agent);
}

TEST_CASE("Find: a link in the process's root does not lead out of it", "[find]") {
    const OwnTree tree;
    const auto agent = add_agent(tree);
    const auto tmp = tree.root() / "tmp";
    const auto moved = tree.root() / "private";
    fs::rename(tmp, moved);
    fs::create_directory_symlink("/private", tmp); // within the root, as on systems that put /tmp elsewhere
    CHECK(connect(tree));
    fs::remove(tmp);
    fs::create_directory_symlink(moved, tmp); // by its path outside of the root
    CHECK(code_of(connect(tree)) == ErrorCode::no_agent);
}

TEST_CASE("Find: a process whose root is gone has ended", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 5});
    fs::remove(tree.proc() / "5" / "root");
    CHECK(code_of(connect(tree, 5)) == ErrorCode::no_process);
}

TEST_CASE("Find: a process whose first thread has ended is found by another", "[find]") {
    const OwnTree tree;
    const auto directory = tree.proc() / std::to_string(::getpid());
    const auto agent = add_agent(tree);
    const ProcFs proc(tree.proc());
    fs::remove(directory / "root");
    fs::remove(directory / "task" / std::to_string(::getpid()) / "exe");
    CHECK_FALSE(proc.is_running(*proc.read(::getpid())));

    fs::create_directory(directory / "task" / "5");
    fs::create_directory_symlink(tree.root(), directory / "task" / "5" / "root");
    fs::create_symlink("/bin/program", directory / "task" / "5" / "exe");
    CHECK(proc.is_running(*proc.read(::getpid())));
    CHECK(connect(tree));
}

TEST_CASE("Find: thousands of directories with the name cost no descriptors, and hide nobody", "[find]") {
    constexpr rlim_t k_few = 16; // besides those that are open
    const OwnTree tree;
    for (int i = 0; i < 3'000; ++i)
        static_cast<void>(tree.add_agent_directory(fmt::format("gpu-sleep-{}.{}", ::getuid(), i)));
    const test::FakeAgent agent(
        tree.add_agent_directory("gpu-sleep-77.zz") / agent_socket_name(::getpid(), 99), answer_status);
    const UniqueFd last(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit few{static_cast<rlim_t>(last.get()) + k_few, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const auto socket = connect(tree);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    INFO((socket ? "" : socket.error().message));
    CHECK(socket);
}

TEST_CASE("Find: of many leftovers of one pid, the process's own socket is tried first", "[find]") {
    const OwnTree tree;
    const auto directory = tree.add_agent_directory(k_directory);
    for (std::uint64_t i = 0; i < 200; ++i)
        test::leave_stale_socket(directory / agent_socket_name(::getpid(), 1000 + i));
    const test::FakeAgent agent(directory / agent_socket_name(::getpid(), 99), answer_status);
    CHECK(connect(tree));
}

TEST_CASE("Find: a process with another root is found by that of the thread that listens", "[find]") {
    const OwnTree tree;
    const auto agent = add_agent(tree);
    const auto directory = tree.proc() / std::to_string(::getpid());
    const auto jail = tree.root() / "jail";
    fs::create_directories(jail / "tmp");
    fs::remove(directory / "root");
    fs::create_directory_symlink(jail, directory / "root");
    auto finder = finder_of(tree);
    CHECK(code_of(finder.connect(*finder.proc().read(::getpid()))) == ErrorCode::no_agent);
    const auto thread = "proc/" + std::to_string(::getpid()) + "/task/5";
    tree.write(thread + "/comm", GENERATE("gpu-sleep-ctl\n", "gpu-sleep-ctl+\n"));
    fs::create_directory_symlink(tree.root(), directory / "task" / "5" / "root");
    CHECK(finder.connect(*finder.proc().read(::getpid())));
}

TEST_CASE("Find: why there is no connection tells an agent that cannot be reached from none", "[find]") {
    const OwnTree tree;
    const auto directory = "proc/" + std::to_string(::getpid());
    const auto why_not = [&] {
        const auto socket = connect(tree);
        REQUIRE_FALSE(socket);
        return socket.error();
    };
    CHECK(why_not().code == ErrorCode::no_agent);
    CHECK_THAT(why_not().message, test::mentions("start it again, with gpu-run or after gpu-enable"));
    CHECK(traits(ErrorCode::no_agent).advice.empty()); // no call of CUDA will start one there

    tree.write(directory + "/maps", "7f00-7f01 r-xp 0 08:01 1 /usr/lib/libc.so.6\n"
                                    "7f02-7f03 r-xp 0 08:01 2 /opt/lib/libgpu-sleep-agent.so.0\n");
    CHECK(why_not().code == ErrorCode::no_agent); // of a parent: its children may have started theirs
    CHECK_THAT(why_not().message, test::mentions("has not started; it starts with the program's first"));
    tree.write(directory + "/environ", "GPU_SLEEP_CAPTURE=0\0"s);
    CHECK_THAT(why_not().message, test::mentions("first tagged allocation, because of gpu-run --no-capture"));
    tree.write(directory + "/environ", "GPU_SLEEP_CAPTURE=1\0GPU_SLEEP_DISABLE=1\0"s);
    CHECK_THAT(why_not().message, test::mentions("GPU_SLEEP_DISABLE turns it off"));
    tree.write(directory + "/environ", "GPU_SLEEP_DISABLE=0\0"s);
    CHECK_THAT(why_not().message, !test::mentions("GPU_SLEEP_DISABLE"));

    tree.write(directory + "/task/5/comm", "gpu-sleep-ctl\n");
    CHECK(why_not().code == ErrorCode::agent_unreachable);
    CHECK_THAT(why_not().message, test::mentions("cannot be reached: it has no socket in /tmp"));
    CHECK(traits(ErrorCode::agent_unreachable).advice.empty());
    fs::create_symlink("4711", tree.proc() / "self");
    CHECK_THAT(why_not().message, test::mentions("unshare --mount-proc"));
    fs::remove(tree.proc() / "self");
    fs::create_symlink(std::to_string(::getpid()), tree.proc() / "self");
    CHECK_THAT(why_not().message, test::mentions("it has no socket in /tmp"));

    tree.write(directory + "/task/5/comm", "gpu-sleep-ctl-\n");
    CHECK(why_not().code == ErrorCode::no_process); // it is about to end
}

TEST_CASE("Find: an agent that begins after others were looked for is found", "[find]") {
    const OwnTree tree;
    tree.write("proc/" + std::to_string(::getpid()) + "/task/5/comm", "gpu-sleep-ctl\n");
    auto finder = finder_of(tree);
    const auto process = *finder.proc().read(::getpid());
    CHECK(code_of(finder.connect(process)) == ErrorCode::agent_unreachable);
    const auto agent = add_agent(tree);
    CHECK(finder.connect(process));
}

TEST_CASE("Find: a user is named, or numbered", "[find]") {
    CHECK(*parse_user("root") == 0);
    CHECK(*parse_user("0") == 0);
    CHECK(*parse_user("61234") == 61'234);
    for (const auto& text : {""s, "-1"s, "61234x"s, "4294967296"s, "no-such-user-here"s})
        CHECK_FALSE(parse_user(text));
}

TEST_CASE("Find: a process is stopped when all of it is, but for what has ended", "[find]") {
    const test::ProcTree tree;
    tree.add({.pid = 40});
    const ProcFs proc(tree.proc());
    const auto is_stopped = [&](const std::string& first, const std::string& second) {
        tree.write("proc/40/task/40/status", "Name:\tState:\tT\nState:\t" + first + "\nPPid:\t1\n");
        tree.write("proc/40/task/41/status", "Name:\tx\nState:\t" + second + "\nPPid:\t1\n");
        return proc.is_stopped(*proc.read(40));
    };
    CHECK(is_stopped("T (stopped)", "T (stopped)"));
    CHECK(is_stopped("t (tracing stop)", "t (tracing stop)"));
    CHECK(is_stopped("Z (zombie)", "T (stopped)"));
    CHECK_FALSE(is_stopped("T (stopped)", "S (sleeping)"));
    CHECK_FALSE(is_stopped("Z (zombie)", "Z (zombie)"));
    CHECK_FALSE(is_stopped("", ""));
    fs::remove_all(tree.proc() / "40" / "task");
    CHECK_FALSE(proc.is_stopped(*proc.read(40)));
}

TEST_CASE("Find: of another user's process that has memory it is said who may put it to sleep", "[find]") {
    const test::ProcTree tree;
    for (const pid_t pid : {40, 41}) tree.add({.pid = pid, .uid = 1'000'040});
    tree.write("proc/41/task/42/comm", "gpu-sleep-ctl\n");
    driver::Gpu gpu;
    gpu.processes = {{40, k_gib}, {41, k_gib}};
    auto finder = finder_of(tree);
    CHECK(holders_without_agent(finder, gpu, {}, 1'000'000) ==
          std::vector<std::string>{"40 ([program]) of 1000040 has 1.00 GiB: only 1000040 and root can put it "
                                   "to sleep",
                                   "41 ([program]) of 1000040 has 1.00 GiB: only 1000040 and root can put it "
                                   "to sleep"});
    CHECK(holders_without_agent(finder, gpu, {}, 0) ==
          std::vector<std::string>{
              "40 ([program]) has 1.00 GiB: it has no agent (gpu-sleep 40 --engine driver)",
              "41 ([program]) has 1.00 GiB: its agent does not answer"});
}

TEST_CASE("Find: an agent asks none of another user, and none with another /tmp", "[find]") {
    const test::ProcTree tree;
    const test::ProcTree other;
    const auto agent = add_agent(tree, 7);
    const auto its_agent = add_agent(other, 42);
    tree.add({.pid = 40, .inner_pid = 7, .start_time = 99});
    tree.add({.pid = 41, .inner_pid = 7, .start_time = 99});
    tree.add({.pid = 42, .start_time = 99});
    tree.add({.pid = 43, .uid = 1'000'040});
    tree.add({.pid = 44, .uid = 0});
    tree.add({.pid = 47, .uid = 1'000'041});
    for (const pid_t pid : {45, 46}) tree.add({.pid = pid, .start_time = 99});
    const auto its_root = tree.proc() / "42" / "root";
    REQUIRE(fs::remove(its_root));
    fs::create_directory_symlink(other.root(), its_root);
    auto finder = finder_of(tree);
    const auto why = [&](pid_t asker, pid_t asked) {
        return why_not_asked(finder, *finder.proc().read(asker), *finder.proc().read(asked));
    };
    CHECK(why(40, 41).empty());
    CHECK(why(40, 42) == "it sees another /tmp, so it cannot be asked; start both with the same /tmp");
    CHECK(why(42, 40) == why(40, 42));
    CHECK(why(45, 46) == "it may be out of reach: its agent's socket was not found");
    CHECK(why(44, 43) == "it belongs to 1000040; root's agents ask only root's processes");
    CHECK(why(47, 44) == "it belongs to root: only root can put it to sleep");
    CHECK(why(47, 43) == "it belongs to 1000040: only 1000040 and root can put it to sleep");
}
