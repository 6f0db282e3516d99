// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copying between the device and contents in pinned host memory.

#pragma once

#include "contents/transfer.hpp"

namespace gpu_sleep::contents {

/// Brings `blocks` from the device to their places in `batches`, all of the host cache. They are whole once
/// it returns and the session was synchronized. After an error copies may still be under way. Errors:
/// out_of_host_memory, driver_failed, context_lost, cancelled, timed_out.
[[nodiscard]] Result<void> take_into_cache(Transfer& transfer, std::span<Batch* const> batches,
                                           std::span<const Move> blocks);
/// Brings `blocks`, which have contents in their places, from the device once more. Queues copies, and
/// returns. Errors: likewise.
[[nodiscard]] Result<void> replace_in_cache(Transfer& transfer, std::span<const Move> blocks);
/// Brings `blocks` to the device: they are there once the session was synchronized, but for coded ones that
/// came last, which the next call or decode_rest() has decoded. Queues copies, and waits for host memory and
/// for copies of earlier calls. Errors: likewise.
[[nodiscard]] Result<void> give_from_cache(Transfer& transfer, std::span<const Move> blocks);
/// Errors: likewise.
[[nodiscard]] Result<void> decode_rest(Transfer& transfer);

} // namespace gpu_sleep::contents
