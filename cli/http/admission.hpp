// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who may call: the owner of a door on this machine, and who knows its token. How long each connection may
// keep the door waiting.

#pragma once

#include "cli/http/address.hpp"
#include "cli/http/routes.hpp"

#include <sys/types.h>

#include <condition_variable>
#include <list>
#include <mutex>
#include <stop_token>
#include <thread>

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
/// that is still open, or where the kernel was built without that answer. Thread-safe. Sources: sock_diag(7),
/// linux/inet_diag.h.
[[nodiscard]] std::optional<uid_t> user_of(const Ends& ends);

/// `user`, unless callers whom a namespace does not know have the same id, which is `overflow`. `map` is that
/// of the namespace. Source: user_namespaces(7).
[[nodiscard]] std::optional<uid_t> known_owner(uid_t user, uid_t overflow, std::string_view map);

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
    Admission(bool is_unix, std::optional<uid_t> owner, std::string token)
        : is_unix_(is_unix), owner_(owner), token_(std::move(token)) {}

    /// Whether the other end of a connection is one of those that need no token; to be asked once.
    [[nodiscard]] bool knows(const Ends& ends) const;
    /// What a request is refused with, or nothing. `is_known`: as knows() said.
    [[nodiscard]] std::optional<Answer> check(bool is_known, const Headers& headers) const;

private:
    bool is_unix_;
    std::optional<uid_t> owner_; ///< nothing: none is told from others
    std::string token_;          ///< empty for none
};

/// A connection. Only its thread, the library's, uses what is not said to be shared.
struct Connection {
    int socket = -1;
    bool is_known = false;      ///< its other end, to Admission
    bool is_stranger = false;   ///< shared, by Connections: it is not, and has sent no token
    Clock::time_point deadline; ///< shared, by Connections
};

/// Cuts off connections that do not say or take what is due. The library's own limit begins anew with each
/// byte, so that one byte a second would hold a connection for ever. Strangers get some of the places only,
/// and the oldest of them makes way for the next, who may have the token. Has a thread. Thread-safe.
class Connections {
public:
    explicit Connections(std::size_t most_strangers) : most_strangers_(most_strangers) {}

    /// The connection stays where it is until it is removed, before `socket` is closed, and this ends.
    [[nodiscard]] Connection* add(int socket, bool is_known, Milliseconds limit);
    void remove(Connection* connection);
    /// It has sent the token.
    void admit(Connection& connection);
    /// The time begins anew. Unset: no limit, for it is our turn.
    void limit(Connection& connection, std::optional<Milliseconds> time);

private:
    void run(const std::stop_token& stop);

    const std::size_t most_strangers_;
    std::mutex mutex_; ///< of all but the thread
    std::condition_variable_any changed_;
    std::list<Connection> all_;
    std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }}; // the last: it uses the others
};

} // namespace gpu_sleep::cli::http
