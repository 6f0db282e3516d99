// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reads of the host program's process that are slow or fail, as on a disk that goes bad.

#pragma once

#include <cstdint>

namespace gpu_sleep::test {

/// From now on each pread() of the process, the agent's among them, takes so many microseconds longer, and
/// all after the next `good` ones fail with EIO.
void spoil_reads(std::uint64_t microseconds, std::uint64_t good);

} // namespace gpu_sleep::test
