// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which devices reach memory of which.

#pragma once

#include "gate/gate.hpp"
#include "intercepted/calls.hpp"

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {

/// cuMemGetAccess of `known`, whether it sleeps or not, where the driver answered `status` and `flags`.
/// Source: CUDA Driver API, cuMemGetAccess; what it says of plain memory was seen.
[[nodiscard]] CUresult access_of(const Allocation& known, const CUmemLocation& location, CUresult status,
                                 unsigned long long& flags) noexcept;
/// The current context may reach memory of `peer`'s device from now on.
void peer_access_enabled(CUcontext peer) noexcept;
/// The driver refused a copy, as it does when an intercepted range lies on a device that the copy's context
/// was not granted access from. Grants it to all devices in use; false when nothing was missing.
[[nodiscard]] bool let_copies_reach(const gate::Inspector& copy) noexcept;
/// Grants the devices that may reach memory of `device` access to what was allocated there, and is in the
/// index: who lets a device at all of it grants what the index has.
void grant_peers(ProgramMemory& memory, int device, CUdeviceptr address);

} // namespace gpu_sleep::agent::intercepted
