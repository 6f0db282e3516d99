// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in compressed files: a parcel is a snapshot.

#pragma once

#include "store/host_budget.hpp"
#include "store/parcel_store.hpp"
#include "store/snapshot_directory.hpp"

#include <memory>
#include <vector>

namespace gpu_sleep::store {

class FileStore final : public ParcelStore, public std::enable_shared_from_this<FileStore> {
public:
    /// Says what contents would take.
    FileStore() = default;
    /// `memory`: of which files take that lie in host memory. Outlives it.
    FileStore(std::shared_ptr<const SnapshotDirectory> directory, HostBudget& memory)
        : directory_(std::move(directory)), memory_(&memory) {
        where = directory_->path();
        identity = directory_->identity();
        is_in_memory = directory_->is_in_memory();
    }
    [[nodiscard]] Result<std::unique_ptr<Parcel>> reserve(std::vector<SnapshotExtent> extents) override;

private:
    friend class FileParcel;
    /// Flushes the names of all its parcels, for the one that was the `nth` to get a new name. Where that
    /// fails, no other's flush counts for those that have new names by then.
    [[nodiscard]] Result<void> flush_names(unsigned nth);

    std::shared_ptr<const SnapshotDirectory> directory_;
    HostBudget* memory_ = nullptr;
    unsigned names_ = 0;       ///< that are new
    unsigned flushed_ = 0;     ///< the last of them that was flushed
    unsigned not_flushed_ = 0; ///< the last of them at a flush that failed
};

} // namespace gpu_sleep::store
