// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving kept ranges of what sleeps from one store to another: drafted from a plan, then estimated, or
// carried out and admitted.

#pragma once

#include "contents/contents.hpp"

#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace gpu_sleep::contents {

/// What one request moves, on all devices. The steps are add(), begin(), carry() and admit(); a dry run asks
/// needs() alone. All contents stay where they are until admit(): with it the new copies, which are whole and
/// flushed, take over, and the old ones are given up. Seals stay. Neither the ledger nor the device is used.
/// Guarded as Contents is; not thread-safe.
class Relocation {
public:
    /// `contents` outlives it.
    Relocation(Contents& contents, SaveOptions options) : contents_(contents), options_(std::move(options)) {}
    Relocation(const Relocation&) = delete;
    Relocation& operator=(const Relocation&) = delete;

    /// Adds what `range`, which sleeps and begins at `address`, has in other stores than `store`.
    void add(Label label, model::Store store, driver::DeviceAddress address, Number range);
    /// Bytes that are to be moved; of the device, or of all.
    [[nodiscard]] Bytes bytes(int device) const noexcept;
    [[nodiscard]] Bytes bytes() const noexcept;
    /// What `store` must take at most. Errors: io_failed.
    [[nodiscard]] Result<Bytes> needs(model::Store store) const;

    /// Reserves what it needs of the host. Errors: out_of_host_memory.
    [[nodiscard]] Result<void> begin();
    /// Copies what is to be moved; then it is whole and flushed. Errors: those of store_from_cache().
    [[nodiscard]] Result<void> carry(ProgressCounter& progress);
    /// From here on the contents lie in their new places.
    void admit() noexcept;

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
