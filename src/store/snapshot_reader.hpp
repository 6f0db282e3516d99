// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading a snapshot: chunks are read ahead, checked and decoded on all cores, and delivered in order.

#pragma once

#include "base/fd.hpp"
#include "store/io_queue.hpp"
#include "store/snapshot.hpp"

#include <filesystem>
#include <span>

namespace gpu_sleep::store {

class SnapshotFile;

/// Where the contents of a snapshot go.
class ChunkSink {
public:
    virtual ~ChunkSink() = default;
    /// Memory for the contents of `place`. Called in order, on the thread of SnapshotReader::read(), for at
    /// most `ahead` chunks before the first of them is delivered. Errors: any; reading ends.
    [[nodiscard]] virtual Result<std::span<std::byte>> space(const ChunkPlace& place) = 0;
    /// The contents of `place`, checked, are where space() said. Called in order, on the same thread. Errors:
    /// any; reading ends.
    [[nodiscard]] virtual Result<void> deliver(const ChunkPlace& place,
                                               std::span<const std::byte> content) = 0;
};

struct SnapshotReadOptions {
    unsigned threads = 0;             ///< that check and decode; 0 for one per processor
    std::size_t ahead = 0;            ///< chunks in progress; 0 for three per thread
    Bytes buffer_bytes = 512 * k_mib; ///< bound for all buffers; lowers the two above
    IoKind io = IoKind::automatic;
    IoQueue* queue = nullptr; ///< used instead of one of its own
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

private:
    [[nodiscard]] Result<void> read_unguarded(ChunkSink& sink, const SnapshotReadOptions& options) const;

    SnapshotReader(UniqueFd own, int fd, SnapshotHeader header)
        : own_(std::move(own)), fd_(fd), header_(std::move(header)) {}
    SnapshotReader(const SnapshotFile& file, SnapshotHeader header);

    UniqueFd own_; ///< empty where somebody else holds the file open
    int fd_;
    const SnapshotFile* file_ = nullptr; ///< that somebody else
    SnapshotHeader header_;
};

} // namespace gpu_sleep::store
