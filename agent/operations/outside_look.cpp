// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting a program that is nobody's child, and reading what it says.

#include "operations/outside_look.hpp"

#include "base/fd.hpp"
#include "base/process.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace gpu_sleep::agent::operations {
namespace {

constexpr std::size_t k_stack_bytes = 64 * k_kib;
constexpr const char* k_last_line = "end";

/// What the two processes read that share this one's memory for a moment, while its thread stands still.
struct Launch {
    const char* program;
    char* const* arguments;
    char* const* environment;
    int output;
    std::byte* stack_end; ///< of the second
};

/// In the second process, until it is another program. Calls nothing that locks.
int become_program(void* argument) {
    const auto& launch = *static_cast<const Launch*>(argument);
    const int nothing = ::open("/dev/null", O_RDWR);
    const bool is_ready = ::dup2(nothing, 0) == 0 && ::dup2(launch.output, 1) == 1 && ::dup2(nothing, 2) == 2;
    // A kernel without this call leaves it the descriptors that the program has not marked.
    ::syscall(SYS_close_range, 3U, ~0U, 0U);
    if (is_ready) ::execve(launch.program, launch.arguments, launch.environment);
    ::_exit(EXIT_FAILURE);
}

/// In the first process, which ends at once: so the second is a child of the init process.
int start_program(void* argument) {
    const auto& launch = *static_cast<const Launch*>(argument);
    const pid_t pid = ::clone(become_program, launch.stack_end, CLONE_VM | CLONE_VFORK, argument);
    ::_exit(pid < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
}

/// Starts it. A process that sends no signal at its end is found by nobody's wait() but ours.
bool start(Launch& launch) {
    const auto stacks = std::make_unique<std::byte[]>(2 * k_stack_bytes);
    launch.stack_end = stacks.get() + k_stack_bytes;
    constexpr int k_no_signal = 0;
    const pid_t pid = ::clone(start_program, stacks.get() + 2 * k_stack_bytes,
                              CLONE_VM | CLONE_VFORK | k_no_signal, &launch);
    if (pid < 0) return false;
    int status = 0;
    while (::waitpid(pid, &status, __WCLONE) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

/// All that comes until the writer is gone, or until `deadline`.
std::string read_all(int file, Clock::time_point deadline) {
    constexpr std::size_t k_most = 64 * k_kib;
    std::string text;
    std::array<char, 4096> buffer{};
    while (text.size() < k_most) {
        const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
        pollfd polled{file, POLLIN, 0};
        if (left <= 0) break;
        const int ready = ::poll(&polled, 1, static_cast<int>(left));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) break;
        const auto got = ::read(file, buffer.data(), buffer.size());
        if (got <= 0) break;
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return text;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    pointers.reserve(texts.size() + 1);
    for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str())); // it is only read
    pointers.push_back(nullptr);
    return pointers;
}

Error unanswered(std::string_view why) {
    return make_error(ErrorCode::no_driver, "what is free on the GPUs cannot be asked from outside: {}", why);
}

} // namespace

Result<OutsideLook> OutsideLook::open() {
    if (has_call_filter()) return unanswered("a filter restricts the system calls of this process");
    Dl_info library{};
    const auto* const here = reinterpret_cast<const void*>(&OutsideLook::open);
    if (::dladdr(here, &library) == 0 || !library.dli_fname)
        return unanswered("the agent does not find itself");
    const std::unique_ptr<char, void (*)(void*)> path(::realpath(library.dli_fname, nullptr), &std::free);
    const std::string_view own = path ? path.get() : library.dli_fname;
    OutsideLook look;
    look.program_ = std::string(own.substr(0, own.rfind('/') + 1)) + "gpu-sleep-look";
    if (::access(look.program_.c_str(), X_OK) != 0) return unanswered(look.program_ + " is missing");
    for (char** variable = ::environ; variable && *variable; ++variable)
        if (!std::string_view(*variable).starts_with("LD_PRELOAD="))
            look.environment_.emplace_back(*variable);
    return look;
}

Result<std::vector<OutsideGpu>> OutsideLook::look(Milliseconds patience) const {
    const auto deadline = Clock::now() + patience;
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return unanswered("there is no descriptor left");
    const UniqueFd output(ends[0]);
    UniqueFd input(ends[1]);
    const std::vector<std::string> words{program_, std::to_string(::getpid())};
    const auto arguments = pointers_to(words);
    const auto environment = pointers_to(environment_);
    Launch launch{program_.c_str(), arguments.data(), environment.data(), input.get(), nullptr};
    if (!start(launch)) return unanswered("no process can be started");
    input = UniqueFd();
    std::istringstream lines(read_all(output.get(), deadline));
    std::vector<OutsideGpu> gpus;
    std::string uuid;
    while (lines >> uuid && uuid != k_last_line) {
        OutsideGpu gpu{uuid, 0, 0, 0};
        if (lines >> gpu.total >> gpu.free >> gpu.used) gpus.push_back(std::move(gpu));
    }
    if (uuid != k_last_line) return unanswered("the management library does not answer");
    return gpus;
}

} // namespace gpu_sleep::agent::operations
