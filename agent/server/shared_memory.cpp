// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One question to another agent, and its answer with a descriptor.

#include "server/shared_memory.hpp"

#include "base/sockets.hpp"
#include "protocol/messages.hpp"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace gpu_sleep::agent::server {
namespace {

Error lost() {
    return make_error(ErrorCode::connection_lost, "the other process closed the connection");
}

/// Waits until there is something to read. Errors: timed_out.
Result<void> wait_for(int socket, Clock::time_point deadline) {
    for (;;) {
        pollfd polled{socket, POLLIN, 0};
        const int ready = ::poll(&polled, 1, milliseconds_until(deadline));
        if (ready > 0) return {};
        if (ready == 0 || errno != EINTR)
            return make_error(ErrorCode::timed_out, "it did not answer in time; is it stopped?");
    }
}

/// Connects to the socket at `path`, if `process` itself listens there. Empty if nobody does, or another.
/// Errors: io_failed.
Result<UniqueFd> connect_at(const std::string& path, const ProcessIdentity& process) {
    const auto address = unix_address(path);
    if (!address) return UniqueFd();
    // It does not wait for an agent that is stopped.
    auto socket = opened([&] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    if (!socket) return errno_error(ErrorCode::io_failed, errno, "socket", path);
    if (connect_unix(socket.get(), *address) != 0) return UniqueFd();
    const auto peer = peer_of(socket.get());
    if (!peer || peer->uid != ::geteuid() || peer->pid != process.pid) return UniqueFd();
    return socket;
}

Result<UniqueFd> connect_to(const ProcessIdentity& process) {
    const auto user = ::geteuid();
    const auto name = agent_socket_name(process.pid, process.start_time);
    const UniqueFd tmp(open_file(AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto connect_in = [&](const std::string& directory) -> Result<UniqueFd> {
        // A socket in a directory of somebody else may never answer.
        if (!open_private_directory(tmp.get(), directory, user)) return UniqueFd();
        return connect_at(fmt::format("/tmp/{}/{}", directory, name), process);
    };
    auto socket = connect_in(agent_directory(user).substr(std::strlen("/tmp/")));
    if (!socket || *socket) return socket;
    auto found = GPU_SLEEP_TRY(find_agent_directories(tmp.get()));
    for (const auto& directory : found.names[user]) {
        socket = connect_in(directory);
        if (!socket || *socket) return socket;
    }
    return make_error(ErrorCode::no_agent, "process {} has no agent here", process.pid);
}

Result<void> send(int socket, std::span<const std::byte> bytes) {
    while (!bytes.empty()) { // far less than the socket holds, so it does not wait
        const auto sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return lost();
        bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return {};
}

/// Adds what arrives to `reader`, and keeps a descriptor that comes along.
Result<void> receive(int socket, protocol::FrameReader& reader, UniqueFd& memory) {
    std::array<std::byte, 4096> buffer{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    iovec data{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const auto got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) return {};
    if (got <= 0) return lost();
    for (auto* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(part), sizeof descriptor);
        memory.reset(descriptor);
    }
    reader.append({buffer.data(), static_cast<std::size_t>(got)});
    return {};
}

/// What the other agent said; it can be asked again.
struct Answer {
    Result<SharedMemory> reply;
};
Result<Answer> ask_by(int socket, const model::SharedMemoryRequest& request, Clock::time_point deadline) {
    const auto bytes = GPU_SLEEP_TRY(protocol::encode(protocol::Request(request)));
    GPU_SLEEP_TRY(send(socket, bytes));
    protocol::FrameReader reader;
    SharedMemory answer;
    for (;;) {
        GPU_SLEEP_TRY(wait_for(socket, deadline));
        GPU_SLEEP_TRY(receive(socket, reader, answer.memory));
        const auto frame = GPU_SLEEP_TRY(reader.next());
        if (!frame) continue;
        auto reply = GPU_SLEEP_TRY(protocol::decode_reply(*frame));
        if (auto* failure = std::get_if<model::Failure>(&reply)) return Answer{std::move(failure->error)};
        const auto* shared = std::get_if<model::SharedMemory>(&reply);
        const bool wants_memory = request.question <= model::SharingQuestion::wake;
        if (!shared || (wants_memory && !answer.memory))
            return make_error(ErrorCode::protocol_mismatch, "the other process sent no memory");
        answer.what = *shared;
        return Answer{std::move(answer)};
    }
}

} // namespace

Result<SharedMemory> ask_for_memory(const ProcessIdentity& process, const model::SharedMemoryRequest& request,
                                    Clock::time_point deadline) {
    return Agents().ask(process, request, deadline);
}

Result<SharedMemory> Agents::ask(const ProcessIdentity& process, const model::SharedMemoryRequest& request,
                                 Clock::time_point deadline) {
    const auto known = std::ranges::find(sockets_, process, &std::pair<ProcessIdentity, UniqueFd>::first);
    if (known != sockets_.end()) {
        auto answer = ask_by(known->second.get(), request, deadline);
        if (answer) return std::move(answer->reply);
        sockets_.erase(known);
        if (answer.error().code != ErrorCode::connection_lost) return std::move(answer).error();
    }
    constexpr Milliseconds k_between_tries{5};
    for (;; std::this_thread::sleep_for(k_between_tries)) {
        auto socket = GPU_SLEEP_TRY(connect_to(process));
        auto answer = ask_by(socket.get(), request, deadline);
        if (answer) {
            sockets_.emplace_back(process, std::move(socket));
            return std::move(answer->reply);
        }
        // It closes connections when there are too many.
        if (answer.error().code != ErrorCode::connection_lost || Clock::now() >= deadline)
            return std::move(answer).error();
    }
}

} // namespace gpu_sleep::agent::server
