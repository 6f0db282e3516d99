// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One command's connection: who it is, what it sends, what it is told.

#pragma once

#include "base/fd.hpp"
#include "common/named_tracer.hpp"
#include "protocol/messages.hpp"

#include <sys/socket.h>

#include <memory>

namespace gpu_sleep::agent::server {

/// Says how to resume a stopped process.
[[nodiscard]] std::string how_to_go_on(pid_t stopped);

/// Used by one thread at a time: first the listening one, then, with an operation, the operations thread.
class Connection {
public:
    /// Takes over an accepted socket. Errors: not_permitted (the peer is neither this user nor root).
    [[nodiscard]] static Result<std::unique_ptr<Connection>> adopt(UniqueFd socket);

    /// Negative once the program has closed it.
    [[nodiscard]] int fd() const noexcept { return socket_.is_held() ? socket_.get() : -1; }
    [[nodiscard]] Clock::time_point since() const noexcept { return since_; }
    /// The peer's user, as the kernel says.
    [[nodiscard]] uid_t uid() const noexcept { return uid_; }
    [[nodiscard]] pid_t peer() const noexcept { return peer_; }

    /// Reads what has arrived. Errors: connection_lost.
    [[nodiscard]] Result<void> receive();
    /// The next whole request, if there is one. Errors: protocol_mismatch, invalid_argument.
    [[nodiscard]] Result<std::optional<protocol::Request>> next();

    /// Whether the peer has gone, or has shut its side: it waits for nothing any more.
    [[nodiscard]] bool is_withdrawn() const noexcept;

    /// Sends the last word, with `descriptor` if there is one, and lets the peer see the end. Waits two
    /// seconds at most for a peer that does not read.
    void answer(const protocol::Reply& reply, int descriptor = -1);

    /// Sends progress, at most every 50 ms unless it ends a step of a joint request, and never waits. Returns
    /// false when the peer is_withdrawn(). That the device is drained, that all is ready, or that the point
    /// of no return is passed, is always sent; false when it could not be, and the peer, who may have
    /// withdrawn just then, will never hear of it. In the phase deep, which is sent at once, a peer that has
    /// shut its side has done its part.
    [[nodiscard]] bool tell(const model::Progress& progress);
    /// The peer that does the driver's part and is stopped, as tell() last saw it; 0 where none is. Such a
    /// one goes on after five seconds, where this process may tell it to.
    [[nodiscard]] pid_t stopped_peer() const noexcept { return stopped_since_ ? peer_ : 0; }

    /// Waits, for `patience` at most, for what the peer says about its operation. Empty: it has said nothing.
    /// Errors: connection_lost (it has withdrawn), protocol_mismatch, invalid_argument (also something that
    /// is no directive).
    [[nodiscard]] Result<std::optional<model::Directive>> hear(Milliseconds patience);

private:
    Connection(UniqueFd socket, const ucred& peer) noexcept
        : socket_(std::move(socket)), uid_(peer.uid), peer_(peer.pid) {}

    void let_peer_trace();
    /// In the phase deep: all calls of the program wait for the peer, and its lock of the driver is not to be
    /// taken from it while it may go on at any time.
    void look_after_peer();
    /// Whether the peer has not taken what it was told: room is left for what must arrive.
    [[nodiscard]] bool is_behind() const;

    HeldFile socket_;
    protocol::FrameReader reader_;
    Clock::time_point since_ = Clock::now();
    Clock::time_point last_told_{};
    bool has_told_deep_ = false;
    bool in_call_ = false;          ///< as was told last
    Clock::time_point next_look_{}; ///< of look_after_peer()
    std::optional<Clock::time_point> stopped_since_;
    bool has_said_stopped_ = false;
    const uid_t uid_;
    pid_t peer_;         ///< as the kernel says; 0 for one that is not in this pid namespace
    NamedTracer tracer_; ///< the peer, from when it is told to do the driver's part until it has done that
};

} // namespace gpu_sleep::agent::server
