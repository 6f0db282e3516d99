// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Headers, and where chunks are.

#include "store/snapshot_reader.hpp"

#include "base/guard.hpp"
#include "base/text.hpp"
#include "store/snapshot_file.hpp"

namespace gpu_sleep::store {
namespace {

/// The front of an open file, which may pass by the page cache: it goes to whole pages. Errors: damaged (the
/// file is shorter), io_failed, out_of_host_memory.
Result<Pages> read_front(int fd, Bytes bytes) {
    auto front = Pages::map(static_cast<std::size_t>(bytes));
    if (!front)
        return make_error(ErrorCode::out_of_host_memory, "no host memory for the header of a snapshot");
    GPU_SLEEP_TRY(move_bytes({IoRequest::Kind::read, fd, front.bytes().data(), front.bytes().size()}));
    return front;
}

Result<Bytes> size_of(int fd) {
    struct stat status = {};
    if (::fstat(fd, &status) != 0)
        return errno_error(ErrorCode::io_failed, errno, "fstat", "cannot read the snapshot");
    const auto bytes = static_cast<Bytes>(status.st_size);
    if (bytes < k_alignment)
        return make_error(ErrorCode::damaged, "the snapshot is truncated: it has {}", counted(bytes, "byte"));
    return bytes;
}

Result<SnapshotHeader> read_header(int fd) {
    const auto file_bytes = GPU_SLEEP_TRY(size_of(fd));
    const auto page = GPU_SLEEP_TRY(read_front(fd, k_alignment));
    const auto bytes = GPU_SLEEP_TRY(read_preamble(page.bytes().first<k_preamble_bytes>(), file_bytes));
    const auto header = GPU_SLEEP_TRY(read_front(fd, bytes));
    return decode_header(header.bytes(), file_bytes);
}

/// Errors: damaged, io_failed, out_of_host_memory.
Result<void> compare_header(int fd, const SnapshotHeader& written) {
    const auto file_bytes = GPU_SLEEP_TRY(size_of(fd));
    if (file_bytes != written.file_bytes)
        return make_error(ErrorCode::damaged, "the snapshot is damaged: it has {} of {}",
                          counted(file_bytes, "byte"), written.file_bytes);
    const auto front = GPU_SLEEP_TRY(read_front(fd, written.header_bytes));
    const auto header = encode_header(written);
    if (!std::equal(header.begin(), header.end(), front.bytes().begin(), front.bytes().end()))
        return make_error(ErrorCode::damaged,
                          "the snapshot is damaged: its header was changed or overwritten");
    return {};
}

} // namespace

Result<SnapshotReader> SnapshotReader::open(const std::filesystem::path& path) {
    auto fd = GPU_SLEEP_TRY(open_snapshot(path));
    return open(std::move(fd));
}

Result<SnapshotReader> SnapshotReader::open(UniqueFd fd) {
    use_direct_io(fd.get()); // nobody reads it twice
    auto header = GPU_SLEEP_TRY(guarded([&] { return read_header(fd.get()); }));
    return SnapshotReader(std::move(fd), nullptr, std::move(header));
}

Result<SnapshotReader> SnapshotReader::open(const SnapshotFile& file, const SnapshotHeader& written) {
    return guarded([&]() -> Result<SnapshotReader> {
        GPU_SLEEP_TRY(file.check_held());
        GPU_SLEEP_TRY(compare_header(file.fd(), written));
        return SnapshotReader(UniqueFd(), &file, written);
    });
}

Result<GetChunk> SnapshotReader::chunks(const SnapshotReadOptions& options) const {
    const int fd = file_ ? file_->fd() : own_.get();
    auto queue = options.queue;
    if (!queue)
        queue = GPU_SLEEP_TRY(
            open_io_queue(options.io, uses_direct_io(fd) ? IoUse::direct : IoUse::cached_reads));
    return GetChunk([this, queue, fd](const ChunkPlace& place, std::byte* to,
                                      std::function<void(Result<CodedChunk>)> done) -> Result<void> {
        const auto& row = header_.rows[place.number];
        const CodedChunk chunk{row.shape, row.used_bytes, row.checksum, {to, row.stored_bytes}};
        queue->submit({IoRequest::Kind::read, fd, to, row.stored_bytes, row.offset,
                       [chunk, done = std::move(done)](Result<void> read) {
                           if (read)
                               done(chunk);
                           else
                               done(std::move(read).error());
                       },
                       file_ ? file_->identity() : FileIdentity()});
        return {};
    });
}

Result<void> SnapshotReader::read(ChunkSink& sink, const SnapshotReadOptions& options) const {
    return guarded([&]() -> Result<void> {
        const auto& extents = header_.description.extents;
        for (const auto extent : options.extents)
            if (extent >= extents.size())
                return make_error(ErrorCode::invalid_argument, "the snapshot has no extent {}", extent);
        const auto get = GPU_SLEEP_TRY(chunks(options));
        return decode_all(places_of(extents, options.extents), extents, sink, get, options);
    });
}

} // namespace gpu_sleep::store
