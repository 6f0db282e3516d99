// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Other processes of a test: this very program, run again for a hidden test case that is the other one's
// part.

#pragma once

#include "support/catch.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace gpu_sleep::driver_testing {

/// Another run of this program, for one test case, which says that it is ready before anything else.
class Process {
public:
    Process(std::string test_case, const std::vector<std::string>& environment) {
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        std::string program = "/proc/self/exe";
        char* arguments[] = {program.data(), test_case.data(), nullptr};
        std::vector<std::string> variables = environment;
        variables.push_back("SIM_TEST_READY_FD=" + std::to_string(k_ready_fd));
        std::vector<char*> pointers;
        for (char** inherited = ::environ; *inherited; ++inherited) pointers.push_back(*inherited);
        for (auto& variable : variables) pointers.push_back(variable.data());
        pointers.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, ends[1], k_ready_fd);
        REQUIRE(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, pointers.data()) == 0);
        ::posix_spawn_file_actions_destroy(&actions);
        ::close(ends[1]);
        ready_ = ends[0];
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    ~Process() {
        if (pid_ > 0) end_with(SIGKILL);
        ::close(ready_);
    }

    /// Waits until the other process says that it is ready; false if it ended instead.
    [[nodiscard]] bool wait_until_ready() const {
        char byte = 0;
        return ::read(ready_, &byte, 1) == 1;
    }
    /// Waits for the end of it; whether its test case was run and passed.
    [[nodiscard]] bool passed() {
        const bool ran = wait_until_ready();
        const int status = wait();
        return ran && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    [[nodiscard]] pid_t pid() const { return pid_; }
    void end_with(int signal) {
        ::kill(pid_, signal);
        wait();
    }

private:
    int wait() {
        int status = 0;
        ::waitpid(pid_, &status, 0);
        pid_ = -1;
        return status;
    }

    static constexpr int k_ready_fd = 9;
    pid_t pid_ = -1;
    int ready_ = -1;
};

/// The other run says so.
inline void say_ready() {
    const char* fd = std::getenv("SIM_TEST_READY_FD");
    REQUIRE(fd != nullptr);
    REQUIRE(::write(std::atoi(fd), "r", 1) == 1);
}

} // namespace gpu_sleep::driver_testing
