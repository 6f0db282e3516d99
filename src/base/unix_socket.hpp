// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Unix sockets: their addresses, and who is at the other end.

#pragma once

#include <sys/socket.h>
#include <sys/un.h>

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

} // namespace gpu_sleep
