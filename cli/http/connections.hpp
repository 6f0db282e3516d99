// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Connections, and how long each may keep the door waiting.

#pragma once

#include "base/units.hpp"

#include <condition_variable>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

namespace gpu_sleep::cli::http {

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
