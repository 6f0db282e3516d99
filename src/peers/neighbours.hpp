// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agents of other processes of this user, found as an agent can: by their sockets, without a look at
// /proc.

#pragma once

#include "base/fd.hpp"
#include "base/process.hpp"
#include "base/result.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::peers {

/// The agents in the directory that this user's processes share. Thread-safe. Takes no lock of the loader's,
/// and asks no name service.
class Neighbours {
public:
    /// Errors: io_failed (this user has no such directory of the usual name).
    [[nodiscard]] static Result<Neighbours> open();

    [[nodiscard]] int directory() const noexcept { return directory_.get(); }
    /// Those of all processes but this one, also of some that have ended. Errors: io_failed.
    [[nodiscard]] Result<std::vector<ProcessIdentity>> list() const;
    /// A connected, non-blocking socket, whose peer is of this user. Errors: no_agent (nobody listens there),
    /// timed_out (it does not accept connections), io_failed.
    [[nodiscard]] Result<UniqueFd> connect(const ProcessIdentity& process) const;

private:
    Neighbours(UniqueFd directory, std::string path) noexcept
        : directory_(std::move(directory)), path_(std::move(path)) {}

    UniqueFd directory_;
    std::string path_;
};

} // namespace gpu_sleep::peers
