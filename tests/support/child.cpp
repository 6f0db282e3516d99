// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Spawning, waiting, and reading lines.

#include "support/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>

namespace gpu_sleep::test {
namespace {

/// For an answer: holding tens of gigabytes takes a while.
constexpr Milliseconds k_patience{300'000};

/// Starts `words` with `input` (-1: inherited) and `output` as its standard input and output.
Result<pid_t> spawn(std::vector<std::string>& words, int input, int output) {
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    if (input >= 0) ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    pid_t pid = 0;
    const int failure =
        ::posix_spawn(&pid, arguments.front(), &actions, nullptr, arguments.data(), ::environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) return errno_error(ErrorCode::io_failed, failure, "posix_spawn", words.front());
    return pid;
}

ssize_t read_some(int fd, std::string& text) {
    std::array<char, 4096> buffer;
    ssize_t got = 0;
    do got = ::read(fd, buffer.data(), buffer.size());
    while (got < 0 && errno == EINTR);
    if (got > 0) text.append(buffer.data(), static_cast<std::size_t>(got));
    return got;
}

int wait_for(pid_t pid) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace

std::string sibling_program(std::string_view name) {
    std::error_code failure;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
    return (self.parent_path() / name).string();
}

Result<CommandResult> run_command(std::vector<std::string> words) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error(ErrorCode::io_failed, errno, "pipe2", "");
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const auto start = Clock::now();
    const auto pid = spawn(words, -1, write_end.get());
    if (!pid) return pid.error();
    write_end.reset();
    CommandResult result;
    while (read_some(read_end.get(), result.output) > 0) {
    }
    result.status = wait_for(*pid);
    result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return result;
}

Result<Server> Server::start(std::vector<std::string> words) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
        return errno_error(ErrorCode::io_failed, errno, "socketpair", "");
    UniqueFd ours(ends[0]);
    const UniqueFd theirs(ends[1]);
    const auto pid = spawn(words, theirs.get(), theirs.get());
    if (!pid) return pid.error();
    return Server(*pid, std::move(ours));
}

Server::~Server() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    wait_for(pid_);
}

Result<std::string> Server::ask(std::string_view line) {
    std::string text(line);
    text += '\n';
    for (std::string_view left = text; !left.empty();) {
        const auto sent = ::send(socket_.get(), left.data(), left.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno_error(ErrorCode::io_failed, errno, "send", "the server");
        left.remove_prefix(static_cast<std::size_t>(sent));
    }
    return read_line(Clock::now() + k_patience);
}

Result<std::string> Server::read_line(Clock::time_point deadline) {
    for (;;) {
        if (const auto end = unread_.find('\n'); end != std::string::npos) {
            auto line = unread_.substr(0, end);
            unread_.erase(0, end + 1);
            return line;
        }
        const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
        pollfd readable{socket_.get(), POLLIN, 0};
        const auto ready = ::poll(&readable, 1, static_cast<int>(std::max<Milliseconds::rep>(left, 0)));
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0) return make_error(ErrorCode::timed_out, "server {} gave no answer", pid_);
        if (read_some(socket_.get(), unread_) <= 0)
            return make_error(ErrorCode::io_failed, "server {} has ended", pid_);
    }
}

} // namespace gpu_sleep::test
