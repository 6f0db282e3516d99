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
        is_in_memory = directory_->is_in_memory();
    }
    [[nodiscard]] Result<std::unique_ptr<Parcel>> reserve(std::vector<SnapshotExtent> extents) override;

private:
    friend class FileParcel;
    /// Flushes names that have changed, of all its parcels.
    [[nodiscard]] Result<void> flush_names();

    std::shared_ptr<const SnapshotDirectory> directory_;
    HostBudget* memory_ = nullptr;
    bool has_new_names_ = false;
};

} // namespace gpu_sleep::store
