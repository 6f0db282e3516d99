// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing a snapshot: coded chunks go wherever the file ends just then, several at a time; the header last.

#pragma once

#include "base/thread_safety.hpp"
#include "store/coding.hpp"
#include "store/host_budget.hpp"
#include "store/io_queue.hpp"
#include "store/snapshot.hpp"
#include "store/snapshot_directory.hpp"
#include "store/snapshot_file.hpp"

#include <atomic>
#include <memory>
#include <optional>

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
    SnapshotWriter(const SnapshotWriter&) = delete;
    SnapshotWriter& operator=(const SnapshotWriter&) = delete;

    /// See PutChunk. Errors: out_of_host_memory (that of HostBudget::claim()), io_failed; those of IoRequest.
    [[nodiscard]] Result<void> put(const ChunkPlace& place, const CodedChunk& chunk, ChunkDone done,
                                   const std::atomic<bool>& has_failed);
    /// All chunks are there. Errors: out_of_disk, out_of_host_memory, io_failed.
    [[nodiscard]] Result<Snapshot> finish();

private:
    SnapshotWriter(SnapshotFile file, SnapshotHeader header, const SnapshotWriteOptions& options);
    /// What the file takes of host memory when it grows by `bytes`: nothing where it does not lie there.
    [[nodiscard]] Result<std::shared_ptr<const HostClaim>> claim(Bytes bytes,
                                                                 const std::atomic<bool>& has_failed);
    /// Where a chunk goes that was thought to take up to `most`.
    [[nodiscard]] Bytes allot(Bytes bytes, Bytes most) noexcept;
    [[nodiscard]] Result<void> write_header();

    SnapshotFile file_;
    SnapshotHeader header_;
    Pages front_; ///< for the header: when all else is written it takes no more than a copy of its JSON
    std::shared_ptr<IoQueue> queue_;
    std::optional<ClaimOptions> claims_; ///< none for a file that does not lie in host memory

    Mutex mutex_;
    Bytes end_ GPU_SLEEP_GUARDED_BY(mutex_);  ///< of what was given a place in the file
    Bytes left_ GPU_SLEEP_GUARDED_BY(mutex_); ///< that the other chunks take at most
    /// Of the file; nothing is written behind it while space is reserved, which is until there is too little.
    Bytes reserved_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    bool reserves_ GPU_SLEEP_GUARDED_BY(mutex_) = true;
};

} // namespace gpu_sleep::store
