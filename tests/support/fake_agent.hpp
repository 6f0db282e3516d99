// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A thread of the test that listens on a socket and answers as a script says: what a command sees of an
// agent.

#pragma once

#include "base/fd.hpp"
#include "protocol/messages.hpp"
#include "support/not_copied.hpp"

#include <filesystem>
#include <mutex>
#include <thread>

namespace gpu_sleep::test {

/// A connection, as the script sees it.
class FakeConnection {
public:
    explicit FakeConnection(UniqueFd socket) : socket_(std::move(socket)) {}

    void send(const protocol::Reply& reply) const;
    void send_bytes(const std::vector<std::byte>& bytes) const;
    /// Returns when the peer has closed its side.
    void wait_for_close() const;

    [[nodiscard]] int fd() const noexcept { return socket_.get(); }

private:
    UniqueFd socket_;
};

/// Accepts connections one after another, reads a request from each, and runs the script, after which the
/// connection is closed. Listens from construction to destruction.
class FakeAgent : NotCopied {
public:
    using Script = std::function<void(const protocol::Request& request, FakeConnection& connection)>;

    FakeAgent(const std::filesystem::path& socket_path, Script script);
    ~FakeAgent();

    /// The requests received so far.
    [[nodiscard]] std::vector<protocol::Request> requests() const;

private:
    void serve();

    UniqueFd listener_;
    Script script_;
    mutable std::mutex mutex_;
    std::vector<protocol::Request> requests_; ///< guarded by mutex_
    std::thread thread_;
};

/// A socket's file at `path` on which nobody listens.
void leave_stale_socket(const std::filesystem::path& path);

} // namespace gpu_sleep::test
