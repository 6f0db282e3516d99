// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that programs share: asking the agent of another process for it.

#pragma once

#include "base/process.hpp"
#include "model/request.hpp"

namespace gpu_sleep::agent::server {

/// Memory of another process.
struct SharedMemory {
    model::SharedMemory what;
    UniqueFd memory{}; ///< the driver's descriptor of it; or another, as the question says
};

/// Whether that process of this user has an agent here, as far as can be known.
[[nodiscard]] bool has_agent(const ProcessIdentity& process);

/// Asks the agent of `process`, which must be of this user and in the same place of the file system. It
/// answers while it is being put to sleep or woken, too. Errors: no_agent, io_failed, timed_out,
/// connection_lost, protocol_mismatch; those of the peer.
[[nodiscard]] Result<SharedMemory> ask_for_memory(const ProcessIdentity& process,
                                                  const model::SharedMemoryRequest& request,
                                                  Clock::time_point deadline);

} // namespace gpu_sleep::agent::server
