// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A connection to an agent in the hands of a test, which says what no command would.

#pragma once

#include "protocol/messages.hpp"
#include "support/host.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

namespace gpu_sleep::test {

class Peer {
public:
    explicit Peer(const Host& host) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        const auto path = socket_file(host.pid());
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        REQUIRE(path.copy(address.sun_path, sizeof address.sun_path - 1) == path.size());
        REQUIRE(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    }

    /// A peer that has been cut off is part of some tests, so what cannot be sent is not.
    void send(std::span<const std::byte> bytes) const {
        [[maybe_unused]] const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    void send(const protocol::Request& request) const { send(*protocol::encode(request)); }

    /// The agent's next word, or an empty optional when it has closed.
    [[nodiscard]] std::optional<protocol::Reply> next() {
        for (std::array<std::byte, 4096> buffer;;) {
            auto frame = reader_.next();
            REQUIRE(frame);
            if (frame->has_value()) {
                auto reply = protocol::decode_reply(**frame);
                REQUIRE(reply);
                return *std::move(reply);
            }
            pollfd readable{socket_.get(), POLLIN, 0};
            REQUIRE(::poll(&readable, 1, static_cast<int>(k_patience.count())) == 1);
            const auto got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
            if (got <= 0) return std::nullopt;
            reader_.append(std::span(buffer).first(static_cast<std::size_t>(got)));
        }
    }
    void hang_up() { socket_.reset(); }

private:
    UniqueFd socket_;
    protocol::FrameReader reader_;
};

} // namespace gpu_sleep::test
