// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Usage: stub_agents COUNT RUNS COMMAND...
// Starts COUNT processes that answer as agents do, without a driver, and runs COMMAND so often while they
// live. Prints the least time that it took in seconds and its status in a line, then what it printed last.
// For a pid namespace, where a command finds no other processes.

#include "base/process.hpp"
#include "protocol/messages.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>

using namespace gpu_sleep;

namespace {

/// How the agents behave, by their number from 0; all others have been idle for a quarter of an hour.
enum Behaviour : int { works = 0, hangs = 1, ends = 2, sleeps = 3, breaks = 4, k_behaviours = 5 };

std::string g_socket; ///< of this process

/// Sleeps, if it is to. None wakes: the GPU has too little room.
protocol::Reply answer(int number, const protocol::Request& request) {
    const auto* const sleep = model::sleep_in(request);
    if (std::holds_alternative<model::WakeRequest>(request))
        return model::Failure{make_error(ErrorCode::out_of_device_memory, "no room"), model::State::asleep};
    model::Report report;
    report.operation = sleep ? model::Operation::sleep : model::Operation::status;
    report.pid = ::getpid();
    report.intercepts = true;
    report.state = number == sleeps ? model::State::asleep : model::State::awake;
    report.idle_seconds = number == works ? 3 : 900;
    model::TagReport weights;
    weights.tag = "weights";
    weights.bytes = weights.resident = k_gib;
    report.tags.push_back(std::move(weights));
    if (number == breaks && sleep)
        return model::Failure{make_error(ErrorCode::driver_failed, "the driver failed"), model::State::awake};
    const bool is_idle = number != sleeps && report.idle_seconds >= 900;
    if (!std::holds_alternative<model::IdleSleepRequest>(request) || !is_idle) return report;
    report.changed = true;
    report.state = model::State::asleep;
    return report;
}

void serve(int number, int listener) {
    for (;;) {
        const UniqueFd socket(::accept(listener, nullptr, nullptr));
        if (!socket) ::_exit(1);
        protocol::FrameReader reader;
        for (std::array<std::byte, 4096> buffer;;) {
            const auto got = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
            if (got <= 0) break;
            reader.append(std::span(buffer).first(static_cast<std::size_t>(got)));
            const auto frame = reader.next();
            if (!frame) break;
            if (!frame->has_value()) continue;
            const auto request = protocol::decode_request(**frame);
            if (!request || number == hangs) continue;
            if (number == ends) {
                ::unlink(g_socket.c_str());
                ::_exit(0);
            }
            const auto reply = protocol::encode(answer(number, *request));
            [[maybe_unused]] const auto sent =
                ::send(socket.get(), reply->data(), reply->size(), MSG_NOSIGNAL);
        }
    }
}

[[noreturn]] void be_agent(int number, int ready) {
    const auto directory = agent_directory(::geteuid());
    ::mkdir(directory.c_str(), 0700);
    g_socket = directory + '/' + agent_socket_name(::getpid(), *own_start_time());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, g_socket.c_str(), g_socket.size() + 1);
    const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) ::_exit(1);
    if (::listen(listener.get(), 64) != 0) ::_exit(1);
    ::prctl(PR_SET_NAME, k_control_thread);
    if (::write(ready, "r", 1) != 1) ::_exit(1);
    serve(number, listener.get());
    ::_exit(1);
}

/// Runs `command` with its standard output in `output`. Returns its status.
int run(char** command, int output) {
    const auto child = ::fork();
    if (child == 0) {
        ::dup2(output, STDOUT_FILENO);
        ::execvp(command[0], command);
        ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    const int count = std::atoi(argv[1]);
    const int runs = std::atoi(argv[2]);
    std::array<int, 2> ready{};
    if (::pipe2(ready.data(), O_CLOEXEC) != 0) return 1;
    std::vector<pid_t> agents;
    for (int number = 0; number < count; ++number) {
        const auto agent = ::fork();
        if (agent == 0) be_agent(number < k_behaviours && count < 20 ? number : k_behaviours, ready[1]);
        agents.push_back(agent);
    }
    for (int i = 0; i < count; ++i)
        if (char byte = 0; ::read(ready[0], &byte, 1) != 1) return 1;
    double least = 1e9;
    int status = 0;
    std::string printed;
    for (int i = 0; i < runs; ++i) {
        std::FILE* const output = std::tmpfile();
        const auto start = Clock::now();
        status = run(argv + 3, ::fileno(output));
        least = std::min(least, seconds_since(start));
        std::rewind(output);
        printed.clear();
        for (int c = std::fgetc(output); c != EOF; c = std::fgetc(output)) printed += static_cast<char>(c);
        std::fclose(output);
    }
    for (const auto agent : agents) {
        ::kill(agent, SIGKILL);
        ::waitpid(agent, nullptr, 0);
    }
    fmt::print("{} {}\n{}", least, status, printed);
    return 0;
}
