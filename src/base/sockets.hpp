// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Unix sockets: their addresses and who is at the other end; and writing where nobody may read any more.

#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <optional>
#include <string_view>

namespace gpu_sleep {

/// The address of the socket at `path`; nothing where an address has no room for that.
[[nodiscard]] inline std::optional<sockaddr_un> unix_address(std::string_view path) noexcept {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return std::nullopt;
    path.copy(address.sun_path, path.size());
    return address;
}

/// As connect(2).
[[nodiscard]] inline int connect_unix(int socket, const sockaddr_un& address) noexcept {
    return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

/// The process at the other end, as the kernel says; nothing where it does not, with errno set.
[[nodiscard]] inline std::optional<ucred> peer_of(int socket) noexcept {
    ucred peer{};
    socklen_t length = sizeof peer;
    const bool is_told = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
    return is_told ? std::optional(peer) : std::nullopt;
}

/// Keeps the SIGPIPE of a write of this thread's from the program. What the program does with SIGPIPE stays
/// as it is, and so does one that was pending before.
class PipeSignalHold {
public:
    PipeSignalHold() noexcept {
        sigset_t pending;
        sigemptyset(&pending);
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    PipeSignalHold(const PipeSignalHold&) = delete;
    PipeSignalHold& operator=(const PipeSignalHold&) = delete;
    ~PipeSignalHold() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

    /// Takes the signal back that the write has raised. Changes errno.
    void take_back() const noexcept {
        constexpr timespec k_at_once{};
        while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &k_at_once) < 0 && errno == EINTR) {
        }
    }

private:
    sigset_t pipe_{};
    sigset_t before_{};
    bool was_pending_ = false;
};

} // namespace gpu_sleep
