// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Replies that would be longer than a message may be.

#pragma once

#include "protocol/messages.hpp"

namespace gpu_sleep::protocol {

/// The whole frame of `reply`. A report that is too long is told with fewer rows of tags, and says so in a
/// note. Errors: those of encode().
[[nodiscard]] Result<std::vector<std::byte>> encode_what_fits(const Reply& reply);

} // namespace gpu_sleep::protocol
