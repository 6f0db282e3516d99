// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents on their way to a store and back, from and to the device or the host cache: who codes them, and
// by which buffers. Moving kept ranges from one to the other.

#pragma once

#include "contents/contents.hpp"

#include <tuple>

namespace gpu_sleep::contents {

/// Brings the contents of `batches`, all of a store, from the device to it: they are whole and flushed once
/// it returns. Errors: out_of_host_memory, out_of_disk, io_failed, not_permitted, driver_failed,
/// context_lost, cancelled, timed_out.
[[nodiscard]] Result<void> store_from_device(Transfer& transfer, std::span<Batch* const> batches);
/// Brings `blocks`, all of stores, to the device: they are there once the session was synchronized. Ranges
/// that this cannot be done for are added to `failures`. Errors: those of the device and of waiting.
[[nodiscard]] Result<void> restore_to_device(Transfer& transfer, std::span<const Move> blocks,
                                             Failures& failures);

/// A block that is kept, and goes to another place.
struct Carried {
    Place from;
    Place to;
    driver::Fingerprint seal;
};

/// What one request moves of what sleeps, from one store to another, on all devices. The steps are add(),
/// carry() and admit(); a dry run asks needs() alone. All contents stay where they are until admit(): with it
/// the new copies, which are whole and flushed, take over, and the old ones are given up. Seals stay. Neither
/// the ledger nor the device is used. Guarded as Contents is; not thread-safe.
class Relocation {
public:
    /// `contents` outlives it.
    Relocation(Contents& contents, SaveOptions options) : contents_(contents), options_(std::move(options)) {}
    Relocation(const Relocation&) = delete;
    Relocation& operator=(const Relocation&) = delete;

    /// Adds what `range`, which sleeps and begins at `address`, has in other stores than `store`.
    void add(Label label, model::Store store, driver::DeviceAddress address, Number range);
    /// Bytes that are to be moved of the device.
    [[nodiscard]] Bytes bytes(int device) const noexcept;
    /// What `store` must take at most. Errors: io_failed.
    [[nodiscard]] Result<Bytes> needs(model::Store store) const { return needs_of(batches_, store); }
    /// Reserves what it needs of the host, and copies what is to be moved: then that is whole and flushed.
    /// Each block is compared with its seal on its way from host memory. Errors: out_of_host_memory,
    /// out_of_disk, io_failed, not_permitted, damaged, cancelled, timed_out.
    [[nodiscard]] Result<void> carry(const Control& control);
    /// From here on the contents lie in their new places.
    void admit() noexcept { contents_.relocate(moved_, batches_); }

private:
    /// What goes to one batch.
    struct Target {
        Batch* batch = nullptr;
        std::vector<Carried> blocks; ///< as they were added to it
    };

    Contents& contents_;
    SaveOptions options_;
    std::map<std::tuple<int, model::Store, std::string>, Target> targets_; ///< by device, store and tag
    std::map<int, Bytes> bytes_;                                           ///< of each device
    std::map<Number, KeptRange> moved_;                                    ///< ranges as they will be
    Batches batches_;
};

} // namespace gpu_sleep::contents
