// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents on their way to a store and back, from and to the device or the host cache: who codes them, and
// by which buffers.

#pragma once

#include "contents/transfer.hpp"

#include <span>

namespace gpu_sleep::contents {

/// Brings the contents of `batches`, all of a store, from the device to it: they are whole and flushed once
/// it returns. Errors: out_of_host_memory, out_of_disk, io_failed, not_permitted, driver_failed,
/// context_lost, cancelled, timed_out.
[[nodiscard]] Result<void> store_from_device(Transfer& transfer, std::span<Batch* const> batches);
/// Brings `blocks`, all of stores, to the device: they are there once the session was synchronized. Ranges
/// that this cannot be done for are added to `failures`. Errors: those of the device and of waiting.
[[nodiscard]] Result<void> restore_to_device(Transfer& transfer, std::span<const Move> blocks,
                                             Failures& failures);

/// Brings `blocks`, which lie in the host cache and were added in this order, to the store of `batch`, which
/// has begun: they are whole and flushed once it returns. Each is compared with its seal on the way. Errors:
/// out_of_host_memory, out_of_disk, io_failed, not_permitted, damaged, cancelled, timed_out.
[[nodiscard]] Result<void> store_from_cache(Handover& handover, Batch& batch,
                                            std::span<const Carried> blocks);
/// Brings `blocks`, which lie in stores, to the host cache's `batch`, which has begun. Errors: likewise.
[[nodiscard]] Result<void> restore_to_cache(Handover& handover, Batch& batch,
                                            std::span<const Carried> blocks);

} // namespace gpu_sleep::contents
