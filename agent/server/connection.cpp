// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Receiving requests and sending replies.

#include "server/connection.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/sockets.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <cstring>

namespace gpu_sleep::agent::server {
namespace {

/// Sends some of `bytes`, and `descriptor` if there is one; as send(2).
ssize_t send_some(int socket, std::span<const std::byte> bytes, int descriptor) {
    if (descriptor < 0) return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptor)> control{};
    iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()}; // it is only read
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    auto* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof descriptor);
    return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

} // namespace

std::string how_to_go_on(pid_t stopped) {
    return fmt::format(
        "resume it with kill -CONT {0} or by detaching its debugger, or end it with kill -KILL {0}", stopped);
}

Result<std::unique_ptr<Connection>> Connection::adopt(UniqueFd socket) {
    const auto peer = peer_of(socket.get());
    // The socket lies in a directory that only its owner may enter, so whoever gets here is this user, or
    // holds the capability to pass: root. Root of an outer user namespace shows as the overflow user.
    if (!peer || (peer->uid != ::geteuid() && peer->uid != 0 && peer->uid != overflow_uid()))
        return make_error(ErrorCode::not_permitted, "user {} may not control a process of user {}",
                          peer ? peer->uid : 0, ::geteuid());
    constexpr timeval k_send_limit{2, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &k_send_limit, sizeof(k_send_limit));
    return std::unique_ptr<Connection>(new Connection(std::move(socket), *peer));
}

Result<void> Connection::receive() {
    std::array<std::byte, 4096> buffer;
    for (;;) {
        const auto got = ::recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (got > 0) {
            reader_.append({buffer.data(), static_cast<std::size_t>(got)});
            // Whole requests are small: what is left can wait until this much was looked at.
            return {};
        }
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
        return make_error(ErrorCode::connection_lost, "the command closed the connection");
    }
}

Result<std::optional<protocol::Request>> Connection::next() {
    const auto frame = GPU_SLEEP_TRY(reader_.next());
    if (!frame) return std::optional<protocol::Request>();
    auto request = GPU_SLEEP_TRY(protocol::decode_request(*frame));
    return std::optional(std::move(request));
}

void Connection::answer(const protocol::Reply& reply, int descriptor) {
    const auto bytes = protocol::encode_what_fits(reply);
    if (!bytes) return;
    for (std::size_t sent = 0; sent < bytes->size();) {
        const auto rest = std::span<const std::byte>(*bytes).subspan(sent);
        const auto count = send_some(fd(), rest, sent == 0 ? descriptor : -1);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return; // nobody is there to be told
        sent += static_cast<std::size_t>(count);
    }
    ::shutdown(fd(), SHUT_WR);
}

bool Connection::is_withdrawn() const noexcept {
    pollfd peer{fd(), POLLRDHUP, 0};
    return peer.fd < 0 || (::poll(&peer, 1, 0) > 0 && (peer.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
}

bool Connection::tell(const model::Progress& progress) {
    constexpr Milliseconds k_interval{50};
    if (fd() < 0) return false;
    if (is_withdrawn()) {
        tracer_ = NamedTracer();
        stopped_since_.reset();
        return false;
    }
    if (has_told_deep_) ignoring_errors([this] { look_after_peer(); });
    using Phase = model::Progress::Phase;
    const bool must_arrive = progress.phase == Phase::release || progress.phase == Phase::ready ||
                             progress.phase == Phase::drained;
    const bool waits_for_peer = progress.phase == Phase::deep && !has_told_deep_;
    const bool is_of_call = std::exchange(in_call_, progress.in_call) != progress.in_call;
    if (!must_arrive && !waits_for_peer && !is_of_call && Clock::now() - last_told_ < k_interval) return true;
    if (!must_arrive && !waits_for_peer && is_behind()) return true;
    last_told_ = Clock::now();
    if (waits_for_peer) let_peer_trace();
    has_told_deep_ |= waits_for_peer;
    const auto bytes = protocol::encode(protocol::Reply(progress));
    if (!bytes) return !must_arrive;
    const auto count = ::send(fd(), bytes->data(), bytes->size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) return !must_arrive && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    return static_cast<std::size_t>(count) == bytes->size();
}

Result<std::optional<model::Directive>> Connection::hear(Milliseconds patience) {
    const auto deadline = Clock::now() + patience;
    for (;;) {
        if (const auto request = GPU_SLEEP_TRY(next())) {
            if (const auto* said = std::get_if<model::Directive>(&*request)) return std::optional(*said);
            return make_error(ErrorCode::invalid_argument, "a second request came on one connection");
        }
        pollfd peer{fd(), POLLIN, 0};
        if (peer.fd < 0) return make_error(ErrorCode::connection_lost, "the program closed the connection");
        const int ready = ::poll(&peer, 1, milliseconds_until(deadline));
        if (ready == 0) return std::optional<model::Directive>();
        if (ready > 0) GPU_SLEEP_TRY(receive());
    }
}

void Connection::let_peer_trace() {
    ignoring_errors([this] {
        auto named = NamedTracer::name(peer_);
        if (named)
            tracer_ = *std::move(named);
        else // the driver says so, too, to who asks it
            log::debug("Yama may not let the command trace this process: {}", named.error().message);
    });
}

void Connection::look_after_peer() {
    constexpr Milliseconds k_between_looks{500};
    constexpr Milliseconds k_patience{5'000};
    const auto now = Clock::now();
    if (now < next_look_ || peer_ == 0) return;
    next_look_ = now + k_between_looks;
    if (const char state = state_of(peer_); state != 'T' && state != 't') return stopped_since_.reset();
    if (!stopped_since_) stopped_since_ = now;
    if (now - *stopped_since_ < k_patience) return;
    stopped_since_ = now;
    const bool goes_on = ::kill(peer_, SIGCONT) == 0; // connected, so the pid is still its own
    if (std::exchange(has_said_stopped_, true)) return;
    log::warning(
        "process {}, which puts this one to sleep deeply, is stopped, and all calls wait for it; {}{}", peer_,
        goes_on ? "SIGCONT was sent; if that does not help, " : "", how_to_go_on(peer_));
}

bool Connection::is_behind() const {
    constexpr int k_max_unread =
        32 * 1024; // with all that the kernel adds; a socket takes several times more
    int unread = 0;
    return ::ioctl(fd(), SIOCOUTQ, &unread) == 0 && unread > k_max_unread;
}

} // namespace gpu_sleep::agent::server
