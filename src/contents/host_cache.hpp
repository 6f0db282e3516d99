// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in pinned host memory: copying between the device and arenas, and memory that is ready before
// there is anything to keep.

#pragma once

#include "contents/transfer.hpp"
#include "store/host_arena.hpp"

#include <map>
#include <memory>
#include <span>
#include <vector>

namespace gpu_sleep::contents {

class HostCache {
public:
    /// Both outlive it; `pinner` may be null.
    HostCache(store::HostBudget& budget, store::Pinner* pinner) noexcept : budget_(budget), pinner_(pinner) {}

    /// Takes nothing yet. `takes_prepared`: it goes to memory that was prepared, as far as there is any.
    [[nodiscard]] std::unique_ptr<Batch> make_batch(Label label, bool takes_prepared);

    /// Brings `blocks` from the device to their places in `batches`. They are whole once it returns and the
    /// session was synchronized. After an error copies may still be under way. Errors: out_of_host_memory,
    /// driver_failed, context_lost, cancelled, timed_out.
    [[nodiscard]] static Result<void> take(Transfer& transfer, std::span<Batch* const> batches,
                                           std::span<const Move> blocks);
    /// Brings `blocks`, which have contents in their places, from the device once more. Queues copies, and
    /// returns. Errors: as take().
    [[nodiscard]] static Result<void> replace(Transfer& transfer, std::span<const Move> blocks);
    /// Brings `blocks` to the device: they are there once the session was synchronized, but for coded ones
    /// that came last, which the next call or decode_rest() has decoded. Queues copies, and waits for host
    /// memory and for copies of earlier calls. Errors: as take().
    [[nodiscard]] static Result<void> give(Transfer& transfer, std::span<const Move> blocks);
    /// Errors: as take().
    [[nodiscard]] static Result<void> decode_rest(Transfer& transfer);

    /// Host memory that was made ready for the device, and that no contents have taken yet.
    [[nodiscard]] Bytes prepared(int device) const noexcept;
    [[nodiscard]] Bytes prepared() const noexcept;
    /// Devices for which something was.
    [[nodiscard]] std::vector<int> prepared_devices() const;
    /// Adds the pieces of `more`, which are ready. May throw for want of memory: then nothing has changed.
    void add_prepared(int device, store::HostArena& more);
    /// Takes out what was prepared for the device beyond `most` bytes, as a batch that nothing needs; null if
    /// there is nothing. May throw for want of memory: then nothing has changed.
    [[nodiscard]] std::unique_ptr<Batch> take_prepared(int device, Bytes most);
    /// Unpins all that was prepared.
    [[nodiscard]] bool unpin_prepared() noexcept;
    /// Takes out all that was prepared, behind `batches`.
    void take_prepared(Batches& batches) noexcept;

private:
    store::HostBudget& budget_;
    store::Pinner* pinner_;
    std::map<int, Batches> stocks_; ///< one of each device, or none
};

} // namespace gpu_sleep::contents
