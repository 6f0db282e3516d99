// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who may call: the owner of a door on this machine, who knows its token, and networks that it is open to.

#pragma once

#include "cli/http/address.hpp"
#include "cli/http/answer.hpp"

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli::http {

/// Of a request; empty where it has no such header.
struct Headers {
    std::string_view host, authorization;
    bool has_origin = false;
    std::string_view fetch_site{}; ///< Sec-Fetch-Site: what a browser says of the page that asks
};

/// The two ends of a connection over TCP.
struct Ends {
    Endpoint client, door;
};

/// Which user's process has the other end of a connection within this machine; nothing where none is found
/// that is still open. Thread-safe.
using UserOf = std::optional<uid_t> (*)(const Ends& ends);

/// The kernel is asked for that very connection. Sources: sock_diag(7), linux/inet_diag.h.
[[nodiscard]] std::optional<uid_t> user_by_diagnosis(const Ends& ends);

/// It is looked for among all, which takes milliseconds where there are many. Source: proc_pid_net(5),
/// /proc/net/tcp and tcp6.
[[nodiscard]] std::optional<uid_t> user_by_tables(const Ends& ends);

/// By diagnosis, if that finds the door's own listener; else by the tables. A kernel without it answers as if
/// there were no such socket.
[[nodiscard]] UserOf way_to_users(const Endpoint& listening);

/// `user`, unless callers whom a namespace does not know have the same id, which is `overflow`. `map` is that
/// of the namespace. Source: user_namespaces(7).
[[nodiscard]] std::optional<uid_t> known_owner(uid_t user, uid_t overflow, std::string_view map);

/// As user_by_tables(), out of one of them.
[[nodiscard]] std::optional<uid_t> user_in(std::string_view table, const Ends& ends, bool is_v6);

/// Takes as long whatever `given` is, but for its length.
[[nodiscard]] bool is_same_secret(std::string_view secret, std::string_view given) noexcept;

/// Whether a Host header means a door by its address, or by a name that only this machine gives itself: a
/// page of the web can have a name of its own lead to any address, but not these. Without port or with any.
[[nodiscard]] bool is_own_host(std::string_view host);

/// In whichever case; the door's locale is that of C.
[[nodiscard]] bool is_same(std::string_view a, std::string_view b) noexcept;

/// Decides on requests. Immutable; thread-safe.
class Admission {
public:
    Admission(bool is_unix, std::optional<uid_t> owner, std::string token, std::vector<Network> open,
              UserOf user_of)
        : is_unix_(is_unix), owner_(owner), token_(std::move(token)), open_(std::move(open)),
          user_of_(user_of) {}

    /// Whether the other end of a connection is one of those that need no token; to be asked once.
    [[nodiscard]] bool knows(const Ends& ends) const;
    /// What a request is refused with, or nothing. `is_known`: as knows() said.
    [[nodiscard]] std::optional<Answer> check(bool is_known, const Headers& headers) const;

private:
    bool is_unix_;
    std::optional<uid_t> owner_; ///< nothing: none is told from others
    std::string token_;          ///< empty for none
    std::vector<Network> open_;
    UserOf user_of_;
};

} // namespace gpu_sleep::cli::http
