// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Addresses that the door listens on, and those of who calls it.

#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"

#include <array>

#include <sys/socket.h>

namespace gpu_sleep::cli::http {

/// An address of IPv6; one of IPv4 is mapped, as in ::ffff:127.0.0.1.
struct Ip {
    std::array<std::uint8_t, 16> bytes{};

    [[nodiscard]] bool is_v4() const noexcept;
    [[nodiscard]] bool is_loopback() const noexcept;
};

/// Reads "127.0.0.1", "::1". Errors: invalid_argument.
[[nodiscard]] Result<Ip> parse_ip(std::string_view text);

/// One end of a connection.
struct Endpoint {
    Ip ip;
    std::uint16_t port = 0;
};

/// All zero of what is no address of the internet.
[[nodiscard]] Endpoint endpoint_of(const sockaddr* address) noexcept;

/// Where the door listens.
struct Address {
    std::string path; ///< of a Unix socket; empty where it is the endpoint
    Endpoint endpoint;
    std::optional<FileIdentity> file{}; ///< that of the path, once it is bound

    [[nodiscard]] bool is_unix() const noexcept { return !path.empty(); }
    /// Only processes of this machine reach it.
    [[nodiscard]] bool is_local() const noexcept { return is_unix() || endpoint.ip.is_loopback(); }
};

/// Reads "8080", a port of loopback; "unix:/path" or "/path"; "10.1.2.3:8080", "[::1]:8080", "localhost:80".
/// Errors: invalid_argument.
[[nodiscard]] Result<Address> parse_address(std::string_view text);

/// "127.0.0.1:8080", "unix:/path".
[[nodiscard]] std::string to_string(const Address& address);

/// Makes a non-blocking socket that listens at `address`, and notes there the port that the system chose for
/// port 0, or the file of a path. That file has mode 0600; a socket's file that nobody listens on is
/// replaced. Changes the process's umask while it binds: no other thread may make files then. Errors:
/// invalid_argument (the address is taken, or is none of this machine's), not_permitted, io_failed.
[[nodiscard]] Result<UniqueFd> listen_on(Address& address);

/// Removes the file that listen_on() has made, and none that has taken its place. False where it did not, and
/// errno says why.
bool remove_file(const Address& address) noexcept;

} // namespace gpu_sleep::cli::http
