// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Users of connections, secrets, and names of this machine. One look at all connections, a few times a second
// while there are any.

#include "cli/http/admission.hpp"

#include <fmt/format.h>

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <cstring>
#include <sstream>

namespace gpu_sleep::cli::http {
namespace {

std::string machine_name() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

} // namespace

bool is_same(std::string_view a, std::string_view b) noexcept {
    return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<uid_t> user_of(const Ends& ends) {
    const UniqueFd diagnosis(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    struct {
        nlmsghdr header{};
        inet_diag_req_v2 asked{};
    } request;
    const bool is_v4 = ends.client.ip.is_v4();
    request.header = {sizeof(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0};
    request.asked.sdiag_family = is_v4 ? AF_INET : AF_INET6;
    request.asked.sdiag_protocol = IPPROTO_TCP;
    request.asked.idiag_states = ~0U;
    auto& id = request.asked.id; // the client's socket has the client's address first
    const auto put = [&](const Ip& ip, auto& words) {
        constexpr std::size_t k_before_v4 = 12;
        std::copy(ip.bytes.begin() + (is_v4 ? k_before_v4 : 0), ip.bytes.end(),
                  reinterpret_cast<std::uint8_t*>(&words));
    };
    put(ends.client.ip, id.idiag_src);
    put(ends.door.ip, id.idiag_dst);
    id.idiag_sport = htons(ends.client.port);
    id.idiag_dport = htons(ends.door.port);
    id.idiag_if = 1; // loopback, to which a caller's socket may be bound
    id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    if (::send(diagnosis.get(), &request, sizeof(request), 0) < 0) return std::nullopt;
    struct {
        nlmsghdr header{};
        inet_diag_msg found{};
    } reply;
    const auto got = ::recv(diagnosis.get(), &reply, sizeof(reply), MSG_DONTWAIT); // it came by send()
    if (got < static_cast<ssize_t>(sizeof(reply)) || reply.header.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return std::nullopt;
    // Where there is none, one that listens on the client's port could be found. One that its process has
    // closed is nobody's, and the kernel calls that root's.
    if (reply.found.id.idiag_dport != id.idiag_dport || reply.found.idiag_inode == 0) return std::nullopt;
    return reply.found.idiag_uid;
}

std::optional<uid_t> known_owner(uid_t user, uid_t overflow, std::string_view map) {
    std::istringstream words{std::string(map)};
    std::uint64_t inside = 1, outside = 1, count = 0;
    words >> inside >> outside >> count;
    constexpr std::uint64_t k_all = 4294967295;
    const bool knows_all = inside == 0 && outside == 0 && count == k_all;
    return user == overflow && !knows_all ? std::nullopt : std::optional(user);
}

bool is_same_secret(std::string_view secret, std::string_view given) noexcept {
    unsigned difference = secret.size() == given.size() ? 0 : 1;
    for (std::size_t i = 0; i < given.size(); ++i)
        difference |= static_cast<unsigned char>(given[i]) ^
                      static_cast<unsigned char>(secret.empty() ? 0 : secret[i % secret.size()]);
    return difference == 0 && !secret.empty();
}

bool is_own_host(std::string_view host) {
    if (host.empty()) return true; // of HTTP 1.0, which no page of the web speaks
    if (host.front() == '[') return parse_ip(host.substr(1, host.find(']') - 1)).has_value();
    const auto name = host.substr(0, host.find(':'));
    return is_same(name, "localhost") || parse_ip(name) || is_same(name, machine_name());
}

bool Admission::knows(const Ends& ends) const {
    if (is_unix_) return true;
    if (!ends.client.ip.is_loopback()) return false;
    const auto user = user_of(ends);
    return user && (user == owner_ || *user == 0);
}

std::optional<Answer> Admission::check(bool is_known, const Headers& headers) const {
    const auto refusal = [](int status, std::string_view message, std::string_view advice = {}) {
        return answer_of(status, make_error(ErrorCode::not_permitted, "{}", message), advice);
    };
    constexpr std::string_view k_is_page = "access denied: web pages may not call this server";
    if (headers.has_origin) return refusal(k_forbidden, k_is_page);
    constexpr std::string_view k_bearer = "bearer ";
    const auto& given = headers.authorization;
    const bool has_token =
        given.size() > k_bearer.size() && is_same(given.substr(0, k_bearer.size()), k_bearer);
    // Of an image a browser sends no origin, and asks as the owner, or through a proxy that adds the token.
    // Source: Fetch Metadata, section 2.3.
    const auto& site = headers.fetch_site;
    if (!site.empty() && site != "none" && site != "same-origin") return refusal(k_forbidden, k_is_page);
    // Whoever knows the token may use any name.
    if (has_token && is_same_secret(token_, given.substr(k_bearer.size()))) return std::nullopt;
    if (!is_known && token_.empty())
        return refusal(k_forbidden, "access denied: call from localhost as the owner or root",
                       "or start the server with --http-token, and send the token");
    if (!is_known)
        return refusal(k_unauthorized,
                       has_token ? "access denied: wrong token" : "access denied: send the token");
    if (is_unix_ || is_own_host(headers.host)) return std::nullopt;
    return refusal(k_forbidden, "access denied: use the IP address, localhost, or this machine's name");
}

Connection* Connections::add(int socket, bool is_known, Milliseconds limit) {
    const std::lock_guard guard(mutex_);
    all_.push_back({socket, is_known, !is_known, Clock::now() + limit});
    const auto is_stranger = [](const Connection& each) { return each.is_stranger; };
    if (!is_known && static_cast<std::size_t>(std::ranges::count_if(all_, is_stranger)) > most_strangers_) {
        auto& oldest = *std::ranges::find_if(all_, is_stranger);
        oldest.is_stranger = false; // the library is about to close it
        ::shutdown(oldest.socket, SHUT_RDWR);
    }
    changed_.notify_one();
    return &all_.back();
}

void Connections::remove(Connection* connection) {
    const std::lock_guard guard(mutex_);
    std::erase_if(all_, [=](const Connection& each) { return &each == connection; });
}

void Connections::admit(Connection& connection) {
    const std::lock_guard guard(mutex_);
    connection.is_stranger = false;
}

void Connections::limit(Connection& connection, std::optional<Milliseconds> time) {
    const std::lock_guard guard(mutex_);
    connection.deadline = time ? Clock::now() + *time : Clock::time_point::max();
}

void Connections::run(const std::stop_token& stop) {
    constexpr Milliseconds k_between{200};
    std::unique_lock guard(mutex_);
    while (changed_.wait(guard, stop, [&] { return !all_.empty(); })) {
        changed_.wait_for(guard, stop, k_between, [] { return false; });
        if (stop.stop_requested()) return;
        const auto now = Clock::now();
        for (auto& each : all_) {
            if (each.deadline > now) continue;
            ::shutdown(each.socket, SHUT_RDWR); // the library sees its end, and closes it
            each.deadline = Clock::time_point::max();
        }
    }
}

} // namespace gpu_sleep::cli::http
