// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copying from the device to host memory that is not pinned. Internal to this module.

#pragma once

#include "contents/keeper.hpp"
#include "store/host_arena.hpp"

#include <functional>
#include <span>

namespace gpu_sleep::contents {

/// A copy between device memory and an arena.
struct HostCopy {
    driver::AddressSpan device;
    store::HostArena* arena = nullptr;
    Bytes at = 0; ///< in the arena
};

/// Makes `copies`: the device copies to a ring of pinned memory, and RelayThreads::move move that on.
/// `await` waits until a part of an arena has its pages. All is done when this returns; after an error copies
/// to the ring may still be under way. Errors: out_of_host_memory, out_of_threads, driver_failed,
/// context_lost, cancelled, timed_out, those of `await`.
[[nodiscard]] Result<void>
relay(Transfer& transfer, std::span<const HostCopy> copies,
      const std::function<Result<void>(const store::HostArena& arena, Span part)>& await);

} // namespace gpu_sleep::contents
