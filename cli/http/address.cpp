// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading addresses, and listening.

#include "cli/http/address.hpp"

#include "base/sockets.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace gpu_sleep::cli::http {
namespace {

constexpr std::array<std::uint8_t, 12> k_v4_prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
constexpr std::string_view k_rule = "an address is a port of this machine, such as 8080, a socket, such as "
                                    "unix:/run/gpu.sock, or an IP address and a port, such as 10.1.2.3:8080";

Ip mapped(const in_addr& v4) noexcept {
    Ip ip;
    std::copy(k_v4_prefix.begin(), k_v4_prefix.end(), ip.bytes.begin());
    std::memcpy(ip.bytes.data() + k_v4_prefix.size(), &v4, sizeof(v4));
    return ip;
}

/// The address for the system, and its length.
struct Name {
    sockaddr_storage storage{};
    socklen_t length = sizeof(storage);
    [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
};

template <class T>
Name name_of(const T& address) noexcept {
    Name name;
    std::memcpy(&name.storage, &address, sizeof(address));
    name.length = sizeof(address);
    return name;
}

Name name_of(const Address& address) noexcept {
    const auto& [ip, port] = address.endpoint;
    if (address.is_unix()) return name_of(*unix_address(address.path)); // parse_address() bounds it
    if (ip.is_v4()) {
        sockaddr_in v4{};
        v4.sin_family = AF_INET;
        v4.sin_port = htons(port);
        std::memcpy(&v4.sin_addr, ip.bytes.data() + k_v4_prefix.size(), sizeof(v4.sin_addr));
        return name_of(v4);
    }
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, ip.bytes.data(), sizeof(v6.sin6_addr));
    return name_of(v6);
}

Error cannot_listen(const Address& address, int reason) {
    const auto code = reason == EACCES || reason == EPERM               ? ErrorCode::not_permitted
                      : reason == EADDRINUSE || reason == EADDRNOTAVAIL ? ErrorCode::invalid_argument
                                                                        : ErrorCode::io_failed;
    return make_error(code, "cannot listen on {}: {}", to_string(address), std::strerror(reason));
}

/// The identity of the file at the path; nothing if there is none.
std::optional<FileIdentity> file_at(const std::string& path) noexcept {
    return FileIdentity::of(AT_FDCWD, path.c_str());
}

/// Removes the socket that a door which is gone has left. Errors: as those of listen_on().
Result<void> remove_leftover(Address address, Name name) {
    address.file = file_at(address.path);
    if (!address.file) return {};
    struct stat status = {};
    const bool is_socket = ::lstat(address.path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
    const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!is_socket || ::connect(probe.get(), name.get(), name.length) == 0 || errno != ECONNREFUSED)
        return cannot_listen(address, EADDRINUSE);
    if (!remove_file(address)) return cannot_listen(address, errno);
    return {};
}

} // namespace

bool Ip::is_v4() const noexcept {
    return std::equal(k_v4_prefix.begin(), k_v4_prefix.end(), bytes.begin());
}

bool Ip::is_loopback() const noexcept {
    constexpr std::uint8_t k_v4_loopback = 127;
    if (is_v4()) return bytes[k_v4_prefix.size()] == k_v4_loopback;
    return std::memcmp(bytes.data(), &in6addr_loopback, bytes.size()) == 0;
}

Result<Ip> parse_ip(std::string_view text) {
    const std::string word(text);
    in_addr v4{};
    if (::inet_pton(AF_INET, word.c_str(), &v4) == 1) return mapped(v4);
    Ip ip;
    if (::inet_pton(AF_INET6, word.c_str(), ip.bytes.data()) == 1) return ip;
    return make_error(ErrorCode::invalid_argument, "'{}' is not an IP address", text);
}

Endpoint endpoint_of(const sockaddr* address) noexcept {
    if (address && address->sa_family == AF_INET) {
        const auto& v4 = *reinterpret_cast<const sockaddr_in*>(address);
        return {mapped(v4.sin_addr), ntohs(v4.sin_port)};
    }
    Endpoint endpoint;
    if (!address || address->sa_family != AF_INET6) return endpoint;
    const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(address);
    std::memcpy(endpoint.ip.bytes.data(), &v6.sin6_addr, endpoint.ip.bytes.size());
    endpoint.port = ntohs(v6.sin6_port);
    return endpoint;
}

Result<Address> parse_address(std::string_view text) {
    constexpr std::string_view k_unix = "unix:";
    Address address;
    if (text.starts_with(k_unix) || text.starts_with('/')) {
        address.path = text.starts_with('/') ? text : text.substr(k_unix.size());
        if (!address.path.starts_with('/') || !unix_address(address.path) ||
            address.path.find('\0') != std::string::npos)
            return make_error(ErrorCode::invalid_argument,
                              "'{}': the path of a socket is absolute and has at most {} bytes", text,
                              sizeof(sockaddr_un::sun_path) - 1);
        return address;
    }
    const auto colon = text.rfind(':');
    auto host = colon == std::string_view::npos ? std::string_view("localhost") : text.substr(0, colon);
    const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (has_brackets) host = host.substr(1, host.size() - 2);
    const auto ip = parse_ip(host == "localhost" ? "127.0.0.1" : host);
    const auto port =
        parse_number<std::uint16_t>(colon == std::string_view::npos ? text : text.substr(colon + 1));
    if (!ip || !port || (!ip->is_v4() && !has_brackets))
        return make_error(ErrorCode::invalid_argument, "'{}' is not an address: {}", text, k_rule);
    address.endpoint = {*ip, *port};
    return address;
}

std::string to_string(const Address& address) {
    if (address.is_unix()) return "unix:" + address.path;
    const auto& [ip, port] = address.endpoint;
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (ip.is_v4()) {
        ::inet_ntop(AF_INET, ip.bytes.data() + k_v4_prefix.size(), text.data(), text.size());
        return fmt::format("{}:{}", text.data(), port);
    }
    ::inet_ntop(AF_INET6, ip.bytes.data(), text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), port);
}

bool remove_file(const Address& address) noexcept {
    if (!address.file || file_at(address.path) != address.file) {
        errno = EADDRINUSE;
        return false;
    }
    return ::unlink(address.path.c_str()) == 0;
}

Result<UniqueFd> listen_on(Address& address) {
    auto name = name_of(address);
    if (address.is_unix()) GPU_SLEEP_TRY(remove_leftover(address, name));
    UniqueFd socket(::socket(name.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) return cannot_listen(address, errno);
    const int yes = 1; // connections of a door that was ended may linger
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    constexpr mode_t k_owner_alone = S_IXUSR | S_IRWXG | S_IRWXO;
    const auto before = ::umask(k_owner_alone); // a path has its mode from its first moment on
    const int bound = ::bind(socket.get(), name.get(), name.length);
    const int reason = errno;
    ::umask(before);
    if (bound != 0) return cannot_listen(address, reason);
    if (address.is_unix())
        address.file = file_at(address.path);
    else if (::getsockname(socket.get(), name.get(), &name.length) == 0)
        address.endpoint.port = endpoint_of(name.get()).port;
    if (::listen(socket.get(), SOMAXCONN) != 0) return cannot_listen(address, errno);
    return socket;
}

} // namespace gpu_sleep::cli::http
