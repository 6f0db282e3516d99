// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The listening thread.

#include "support/fake_agent.hpp"

#include "support/catch.hpp"

#include <sys/socket.h>
#include <sys/un.h>

namespace gpu_sleep::test {
namespace {

UniqueFd bound_socket(const std::filesystem::path& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.string().size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.c_str(), path.string().size() + 1);
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    return socket;
}

std::optional<protocol::Request> receive_request(const FakeConnection& connection) {
    protocol::FrameReader reader;
    for (std::array<std::byte, 512> buffer;;) {
        const auto frame = reader.next();
        if (!frame) return std::nullopt;
        if (frame->has_value()) {
            auto request = protocol::decode_request(**frame);
            return request ? std::optional(*std::move(request)) : std::nullopt;
        }
        const auto got = ::recv(connection.fd(), buffer.data(), buffer.size(), 0);
        if (got <= 0) return std::nullopt;
        reader.append(std::span(buffer).first(static_cast<std::size_t>(got)));
    }
}

} // namespace

void FakeConnection::send(const protocol::Reply& reply) const {
    send_bytes(*protocol::encode(reply));
}

void FakeConnection::send_bytes(const std::vector<std::byte>& bytes) const {
    // A peer that has gone is part of some tests.
    [[maybe_unused]] const auto sent = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void FakeConnection::wait_for_close() const {
    for (std::array<std::byte, 64> buffer; ::recv(fd(), buffer.data(), buffer.size(), 0) > 0;) {
    }
}

FakeAgent::FakeAgent(const std::filesystem::path& socket_path, Script script)
    : listener_(bound_socket(socket_path)), script_(std::move(script)) {
    REQUIRE(::listen(listener_.get(), 8) == 0);
    thread_ = std::thread([this] { serve(); });
}

FakeAgent::~FakeAgent() {
    ::shutdown(listener_.get(), SHUT_RDWR); // ends the accept
    thread_.join();
}

std::vector<protocol::Request> FakeAgent::requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
}

void FakeAgent::serve() {
    for (;;) {
        FakeConnection connection{UniqueFd(::accept(listener_.get(), nullptr, nullptr))};
        if (connection.fd() < 0) return;
        const auto request = receive_request(connection);
        if (!request) continue;
        {
            const std::lock_guard lock(mutex_);
            requests_.push_back(*request);
        }
        script_(*request, connection);
    }
}

void leave_stale_socket(const std::filesystem::path& path) {
    static_cast<void>(bound_socket(path)); // closed at once, its file stays
}

} // namespace gpu_sleep::test
