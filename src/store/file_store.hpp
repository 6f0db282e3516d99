// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in compressed files: a parcel is a snapshot.

#pragma once

#include "store/host_memory.hpp"
#include "store/parcel_store.hpp"
#include "store/snapshot_directory.hpp"

#include <memory>
#include <vector>

namespace gpu_sleep::store {

class FileStore final : public ParcelStore, public std::enable_shared_from_this<FileStore> {
public:
    /// Says what contents would take.
    FileStore() = default;
    /// `memory`: how files take host memory that lie there.
    FileStore(std::shared_ptr<const SnapshotDirectory> directory, ClaimOptions memory)
        : directory_(std::move(directory)), memory_(std::move(memory)) {
        where = directory_->path();
        is_in_memory = directory_->is_in_memory();
    }
    [[nodiscard]] Result<std::unique_ptr<Parcel>> reserve(std::vector<SnapshotExtent> extents) override;

private:
    friend class FileParcel;
    /// Flushes names that have changed, of all its parcels.
    [[nodiscard]] Result<void> flush_names();

    std::shared_ptr<const SnapshotDirectory> directory_;
    ClaimOptions memory_;
    bool has_new_names_ = false;
};

} // namespace gpu_sleep::store
