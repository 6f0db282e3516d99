// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing a snapshot: contents are pulled, compressed on all cores, and written, all at the same time.

#pragma once

#include "store/host_memory.hpp"
#include "store/io_queue.hpp"
#include "store/snapshot.hpp"
#include "store/snapshot_directory.hpp"
#include "store/snapshot_file.hpp"

#include <functional>
#include <memory>
#include <span>

namespace gpu_sleep::store {

/// Where the contents of a snapshot come from.
class ChunkSource {
public:
    virtual ~ChunkSource() = default;
    /// Waits for the contents of `place`. Called for every chunk in order, on the thread of write_snapshot();
    /// at most as many are out as there are chunks under way (SnapshotWriteOptions). Errors: any; the
    /// snapshot is given up. Where they begin at a page, contents that do not compress are written without a
    /// copy.
    [[nodiscard]] virtual Result<std::span<const std::byte>> take(const ChunkPlace& place) = 0;
    /// The contents are no longer needed. Called once for each that was taken, from any thread, also after a
    /// failure.
    virtual void release(const ChunkPlace& place) noexcept = 0;
};

struct SnapshotWriteOptions {
    unsigned threads = 0;             ///< that encode; 0 for one per processor
    std::size_t under_way = 0;        ///< chunks taken and not yet written; 0 for three per thread
    Bytes buffer_bytes = 512 * k_mib; ///< bound for all buffers; lowers the two above
    bool direct = true;               ///< use direct I/O if the file system can
    IoKind io = IoKind::automatic;
    IoQueue* queue = nullptr; ///< used instead of one of its own
    /// Told when flushing the file begins, which may take minutes, and when it has ended, unless by an error.
    std::function<void(bool begins)> flushing = [](bool) {};
    ClaimOptions memory{}; ///< for files that lie in host memory (tmpfs, ramfs): each chunk is a claim
};

/// A finished snapshot, flushed to the device. Its file is removed when this is destroyed, unless
/// let_stay() was called.
struct Snapshot {
    SnapshotFile file;
    SnapshotHeader header;
};

/// Writes the contents that `source` has of `description` (whose id and date are set here) to a new file in
/// `directory`. After an error nothing is left there. Errors: out_of_disk, out_of_host_memory (that of
/// HostClaims::make() among them), io_failed, not_permitted, those of the source.
[[nodiscard]] Result<Snapshot> write_snapshot(std::shared_ptr<const SnapshotDirectory> directory,
                                              SnapshotDescription description, ChunkSource& source,
                                              const SnapshotWriteOptions& options = {});

} // namespace gpu_sleep::store
