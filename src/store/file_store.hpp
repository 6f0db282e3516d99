// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in compressed files: a parcel is a snapshot. Writing one: coded chunks go wherever the file ends
// just then, several at a time; the header last.

#pragma once

#include "store/host_budget.hpp"
#include "store/io_queue.hpp"
#include "store/parcel_store.hpp"
#include "store/snapshot_file.hpp"

namespace gpu_sleep::store {

struct SnapshotWriteOptions {
    bool direct = true; ///< use direct I/O if the file system can
    IoKind io = IoKind::automatic;
    std::shared_ptr<IoQueue> queue{}; ///< used instead of one of its own
    ClaimOptions memory{}; ///< for files that lie in host memory (tmpfs, ramfs): each chunk is a claim
};

/// A finished snapshot, flushed to the device. Its file is removed when this is destroyed, unless
/// let_stay() was called.
struct Snapshot {
    HostShare share; ///< of a file that lies in host memory: until that is removed
    SnapshotFile file;
    SnapshotHeader header;
};

/// A snapshot that is being written: put() for each chunk of its extents, on any thread, then finish(). Where
/// it is destroyed without that, nothing is left.
class SnapshotWriter {
public:
    /// Makes the file of `description`, whose id and date are set here, in `directory`. Errors: out_of_disk,
    /// out_of_host_memory, io_failed, not_permitted, out_of_threads.
    [[nodiscard]] static Result<std::unique_ptr<SnapshotWriter>>
    create(std::shared_ptr<const SnapshotDirectory> directory, SnapshotDescription description,
           const SnapshotWriteOptions& options);

    /// See PutChunk. Errors: out_of_host_memory (that of HostBudget::claim()), io_failed; those of IoRequest.
    [[nodiscard]] Result<void> put(const ChunkPlace& place, const CodedChunk& chunk, ChunkDone done,
                                   const std::atomic<bool>& has_failed);
    /// All chunks are there. Errors: out_of_disk, out_of_host_memory, io_failed.
    [[nodiscard]] Result<Snapshot> finish();

private:
    SnapshotWriter(SnapshotFile file, SnapshotHeader header, const SnapshotWriteOptions& options);
    /// What the file takes of host memory when it grows by `bytes`: nothing where it does not lie there. It
    /// counts among what the user's processes hold.
    [[nodiscard]] Result<std::shared_ptr<const HostClaim>> claim(Bytes bytes,
                                                                 const std::atomic<bool>& has_failed);
    /// Where a chunk goes that was thought to take up to `most`.
    [[nodiscard]] Bytes allot(Bytes bytes, Bytes most) noexcept;

    SnapshotFile file_;
    SnapshotHeader header_;
    Pages front_; ///< for the header: when all else is written it takes no more than a copy of its JSON
    std::shared_ptr<IoQueue> queue_;
    std::optional<ClaimOptions> claims_; ///< none for a file that does not lie in host memory

    Mutex mutex_;
    HostShare share_ GPU_SLEEP_GUARDED_BY(mutex_); ///< as claims_
    Bytes end_ GPU_SLEEP_GUARDED_BY(mutex_);       ///< of what was given a place in the file
    Bytes left_ GPU_SLEEP_GUARDED_BY(mutex_);      ///< that the other chunks take at most
    /// Of the file; nothing is written behind it while space is reserved, which is until there is too little.
    Bytes reserved_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    bool reserves_ GPU_SLEEP_GUARDED_BY(mutex_) = true;
};

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
