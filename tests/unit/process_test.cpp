// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names of sockets and directories, and start times.

#include "base/process.hpp"

#include "support/child.hpp"
#include "support/proc_tree.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

using namespace gpu_sleep;

TEST_CASE("Process: a socket's name is read as it was written", "[process]") {
    CHECK(agent_directory(1000) == "/tmp/gpu-sleep-1000");
    CHECK(agent_socket_name(4242, 987654321) == "4242-987654321.sock");
    CHECK(parse_agent_socket_name(agent_socket_name(4242, 987654321)) == ProcessIdentity{4242, 987654321});
}

TEST_CASE("Process: other names are no sockets of agents", "[process]") {
    for (const auto* name : {"", ".", "-", ".sock", "-.sock", "1-.sock", "-1.sock", "0-1.sock", "-1-2.sock",
                             "1-2.sock ", "1-2.soc", "1-2", "1-x.sock", "x-2.sock", "1-2-3.sock", "+1-2.sock",
                             "99999999999-2.sock", "1-99999999999999999999999.sock", "1-2.sock.sock"})
        CHECK_FALSE(parse_agent_socket_name(name));
}

TEST_CASE("Process: the start time is found behind any command name", "[process]") {
    const test::ProcTree tree;
    for (const auto* name :
         {"plain", "two words", ") R 1 2 3", "((", "", "a\nb", "\n", "a) R 1\n2 (b", "b\n7 (c) S"}) {
        tree.add({.pid = 7, .start_time = 123456, .name = name});
        CHECK(*start_time_of(7, tree.proc()) == 123456);
    }
}

TEST_CASE("Process: a start time that is not there is an error", "[process]") {
    const test::ProcTree tree;
    CHECK(start_time_of(8, tree.proc()).error().code == ErrorCode::no_process);
    for (const auto* text : {"8 (cut) S 1 2 3", "8", ")", "8 (x) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 x"}) {
        tree.write("proc/8/stat", text);
        const auto start_time = start_time_of(8, tree.proc());
        CHECK(test::error_of(start_time).code == ErrorCode::io_failed);
    }
}

TEST_CASE("Process: the kernel tells of its state, parent and threads, and if it only forked", "[process]") {
    constexpr unsigned k_forked = 0x40; // PF_FORKNOEXEC
    const auto own = test::need(stat_of(::getpid()));
    CHECK(own.state == 'R');
    CHECK(own.parent == ::getppid());
    CHECK(own.threads == 1);
    CHECK((own.flags & k_forked) == 0);
    const auto parent = ::getpid();
    CHECK(test::holds_in_child([=] {
        const auto child = stat_of(::getpid());
        return child && child->parent == parent && (child->flags & k_forked) != 0;
    }));
    CHECK_FALSE(stat_of(0));
}

TEST_CASE("Process: the pid namespace is known where proc shows its processes", "[process]") {
    const test::ProcTree tree;
    CHECK(pid_namespace(tree.proc()) == 0);
    tree.write("proc/self/ns/pid", "");
    struct stat status = {};
    REQUIRE(::stat((tree.proc() / "self/ns/pid").c_str(), &status) == 0);
    tree.write("proc/self/status", "Name:\tNSpid\nNSpid:\t4242\nNSpgid:\t4242\n");
    CHECK(pid_namespace(tree.proc()) == status.st_ino);
    tree.write("proc/self/status", "Name:\tNSpid\nNSpid:\t4242\t7\nNSpgid:\t4242\n");
    CHECK(pid_namespace(tree.proc()) == 0); // the caller is in one within that
    tree.write("proc/self/status", "Name:\tNSpid\n");
    CHECK(pid_namespace(tree.proc()) == 0);
    REQUIRE(::stat("/proc/self/ns/pid", &status) == 0);
    CHECK(pid_namespace() == status.st_ino);
}

TEST_CASE("Process: this process finds itself", "[process]") {
    const auto start_time = own_start_time();
    CHECK(own_start_time("/nowhere")); // known by now
    REQUIRE(start_time);
    CHECK(*start_time > 0);
    CHECK(*start_time == *start_time_of(::getpid()));
    CHECK(state_of(::getpid()) == 'R');
    CHECK(state_of(0) == '?'); // there is none
}

TEST_CASE("Process: the one filter of calls that says it is made for the agent is trusted", "[process]") {
    constexpr std::uint32_t k_question = 0x67707573;
    const auto filter = [](std::uint32_t answered, std::uint32_t answer) {
        std::array<sock_filter, 6> steps = {{
            {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
            {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_close},
            {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, args)},
            {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, answered},
            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | answer},
            {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
        }};
        const sock_fprog program{static_cast<unsigned short>(steps.size()), steps.data()};
        return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    };
    if (has_call_filter()) return; // this test is confined itself
    bool is_set = false, is_filtered = false, is_filtered_twice = false, is_other_filtered = false;
    std::thread([&] { // a filter is its thread's
        is_set = filter(k_question, ENOTUNIQ);
        is_filtered = has_call_filter();
        is_set = is_set && filter(k_question, ENOTUNIQ);
        is_filtered_twice = has_call_filter();
    })
        .join();
    REQUIRE(is_set);
    CHECK_FALSE(is_filtered);
    CHECK(is_filtered_twice);
    for (const auto& [answered, answer] :
         {std::pair(k_question, EPERM), std::pair(k_question + 1, ENOTUNIQ)}) {
        std::thread([&, question = answered, error = answer] {
            is_set = filter(question, static_cast<std::uint32_t>(error));
            is_other_filtered = has_call_filter();
        }).join();
        REQUIRE(is_set);
        CHECK(is_other_filtered);
    }
    CHECK_FALSE(has_call_filter());
}
