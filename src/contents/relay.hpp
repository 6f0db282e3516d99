// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copying between the device and host memory that is not pinned. Internal to this module.

#pragma once

#include "contents/transfer.hpp"
#include "store/host_arena.hpp"
#include "store/host_budget.hpp"

namespace gpu_sleep::contents {

/// A copy between device memory and an arena.
struct HostCopy {
    driver::AddressSpan device;
    store::HostArena* arena = nullptr;
    Bytes at = 0;         ///< in the arena
    std::size_t turn = 0; ///< of the scratch
};

/// Is told the turn of each copy before it is queued.
using ReachTurn = std::function<Result<void>(std::size_t turn)>;

/// Makes `copies`: the device copies to a ring of pinned memory, and HostUse::relay_threads move that on to
/// memory that gets its pages by that, after a claim. All is done when this returns; after an error copies to
/// the ring may still be under way. Errors: out_of_host_memory, out_of_threads, driver_failed, context_lost,
/// cancelled, timed_out.
[[nodiscard]] Result<void> relay(Transfer& transfer, std::span<const HostCopy> copies,
                                 const store::ClaimOptions& claims, const ReachTurn& reach);

/// Makes what relay_back() needs, if it is not there yet. Returns false where there is no memory or there are
/// no threads for it: then it is not tried again in this transfer, and the memory is pinned first. Errors:
/// cancelled, timed_out, driver_failed, context_lost.
[[nodiscard]] Result<bool> prepare_to_relay_back(Transfer& transfer);

/// Makes `copies`, each of which lies in one piece of its arena: HostUse::relay_threads move the contents to
/// a ring of pinned memory, and the device copies from there. Once this returns, whatever it returns, no
/// thread works on it any more, and copies from the ring are queued. Errors: cancelled, timed_out,
/// driver_failed, context_lost, out_of_host_memory.
[[nodiscard]] Result<void> relay_back(Transfer& transfer, std::span<const HostCopy> copies);

} // namespace gpu_sleep::contents
