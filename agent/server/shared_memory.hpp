// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that programs share: asking the agent of another process for it.

#pragma once

#include "base/process.hpp"
#include "model/request.hpp"

#include <utility>
#include <vector>

namespace gpu_sleep::agent::server {

/// Memory of another process.
struct SharedMemory {
    model::SharedMemory what;
    UniqueFd memory{}; ///< the driver's descriptor of it; or another, as the question says
};

/// Asks the agent of `process`, which must be of this user and in the same place of the file system. It
/// answers while it is being put to sleep or woken, too. Errors: no_agent, io_failed, timed_out,
/// connection_lost, protocol_mismatch; those of the peer.
[[nodiscard]] Result<SharedMemory> ask_for_memory(const ProcessIdentity& process,
                                                  const model::SharedMemoryRequest& request,
                                                  Clock::time_point deadline);

/// Several questions, by one connection to each agent. Not thread-safe.
class Agents {
public:
    /// As ask_for_memory().
    [[nodiscard]] Result<SharedMemory> ask(const ProcessIdentity& process,
                                           const model::SharedMemoryRequest& request,
                                           Clock::time_point deadline);

private:
    std::vector<std::pair<ProcessIdentity, UniqueFd>> sockets_;
};

} // namespace gpu_sleep::agent::server
