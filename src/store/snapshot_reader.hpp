// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading a snapshot: its header is checked, and its chunks are found.

#pragma once

#include "store/coding.hpp"
#include "store/io_queue.hpp"

namespace gpu_sleep::store {

class SnapshotFile;

struct SnapshotReadOptions : CodingOptions {
    IoKind io = IoKind::automatic;
    std::shared_ptr<IoQueue> queue{}; ///< used instead of one of its own
    /// Which extents to read, by number; all if there is none.
    std::vector<std::size_t> extents;
};

/// An open snapshot. Checks everything in the file. Thread-safe: each read() has buffers and threads of its
/// own.
class SnapshotReader {
public:
    /// Opens the file and checks its header. Errors: not_permitted, io_failed, damaged, protocol_mismatch,
    /// out_of_host_memory.
    [[nodiscard]] static Result<SnapshotReader> open(const std::filesystem::path& path);
    /// The same with a file that is open already.
    [[nodiscard]] static Result<SnapshotReader> open(UniqueFd fd);
    /// Reads through the descriptor that `file` holds, whatever has become of its name; `file` outlives the
    /// reader, and its descriptor must be held. The header must be as it was written: somebody may have
    /// written over it. Errors: as above, but not_permitted and protocol_mismatch.
    [[nodiscard]] static Result<SnapshotReader> open(const SnapshotFile& file, const SnapshotHeader& written);

    [[nodiscard]] const SnapshotHeader& header() const noexcept { return header_; }

    /// Reads contents into `sink`. Errors: damaged (no chunk that is was delivered), io_failed,
    /// out_of_host_memory, invalid_argument (no such extent), those of the sink.
    [[nodiscard]] Result<void> read(ChunkSink& sink, const SnapshotReadOptions& options = {}) const;

    /// What gets its chunks, by a queue that lasts as long, and may be used while this is there. Errors:
    /// out_of_threads. Those of it: io_failed; those of IoRequest.
    [[nodiscard]] Result<GetChunk> chunks(const SnapshotReadOptions& options = {}) const;

private:
    SnapshotReader(UniqueFd own, const SnapshotFile* file, SnapshotHeader header)
        : own_(std::move(own)), file_(file), header_(std::move(header)) {}

    UniqueFd own_;             ///< empty where somebody else holds the file open
    const SnapshotFile* file_; ///< that somebody else, or null
    SnapshotHeader header_;
};

} // namespace gpu_sleep::store
