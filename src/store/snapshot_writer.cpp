// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Places in the file, room for them, and the header.

#include "store/snapshot_writer.hpp"

#include "store/own_file.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace gpu_sleep::store {

Result<std::unique_ptr<SnapshotWriter>>
SnapshotWriter::create(std::shared_ptr<const SnapshotDirectory> directory, SnapshotDescription description,
                       const SnapshotWriteOptions& options) {
    description.id = GPU_SLEEP_TRY(make_snapshot_id());
    description.created = utc_now();
    auto file = GPU_SLEEP_TRY(SnapshotFile::create(std::move(directory), description.owner, options.direct));
    SnapshotHeader header;
    header.header_bytes = header_bytes_of(description);
    if (header.header_bytes > k_max_header_bytes)
        return make_error(ErrorCode::io_failed, "{} ranges and spans are too many for one snapshot",
                          description.extents.size());
    header.description = std::move(description);
    header.rows.resize(places_of(header.description.extents).size());
    std::unique_ptr<SnapshotWriter> writer(new SnapshotWriter(std::move(file), std::move(header), options));
    writer->front_ = Pages::map(static_cast<std::size_t>(writer->header_.header_bytes));
    if (!writer->front_)
        return make_error(ErrorCode::out_of_host_memory, "no host memory for a snapshot's header");
    std::memset(writer->front_.bytes().data(), 0, writer->front_.bytes().size()); // its pages appear now
    const auto use = uses_direct_io(writer->file_.fd()) ? IoUse::direct : IoUse::cached_writes;
    if (!writer->queue_) writer->queue_ = GPU_SLEEP_TRY(open_io_queue(options.io, use));
    return writer;
}

SnapshotWriter::SnapshotWriter(SnapshotFile file, SnapshotHeader header, const SnapshotWriteOptions& options)
    : file_(std::move(file)), header_(std::move(header)), queue_(options.queue), end_(header_.header_bytes),
      left_(max_file_bytes(header_.description) - header_.header_bytes) {
    if (lies_in_memory(file_.fd())) claims_ = options.memory;
}

Result<std::shared_ptr<const HostClaim>> SnapshotWriter::claim(Bytes bytes,
                                                               const std::atomic<bool>& has_failed) {
    std::shared_ptr<const HostClaim> held;
    if (!claims_) return held;
    const auto needed = [this, bytes] {
        const MutexLock lock(mutex_);
        return "at most " + format_bytes(max_file_bytes(header_.description) - end_ + bytes);
    };
    auto made = GPU_SLEEP_TRY(claims_->budget->claim(bytes, *claims_, needed, [&](Milliseconds time) {
        std::this_thread::sleep_for(time);
        return has_failed.load();
    }));
    held = std::make_shared<const HostClaim>(std::move(made));
    return held;
}

Bytes SnapshotWriter::allot(Bytes bytes, Bytes most) noexcept {
    // Disk space is allocated for a quarter of what is left at a time, and no less than this: each time waits
    // for the writes under way. Never for all: others need the same disk, and most of it would be given back.
    // Where there is none, the rest may still fit once it is smaller.
    constexpr Bytes k_min_reserve_bytes = 256 * k_mib;
    const MutexLock lock(mutex_);
    const auto at = std::exchange(end_, end_ + bytes);
    left_ -= most;
    if (reserves_ && end_ > reserved_) {
        const auto wanted = end_ + std::min(left_, std::max(k_min_reserve_bytes, left_ / 4));
        reserves_ = file_.reserve(reserved_, wanted);
        reserved_ = wanted;
    }
    return at;
}

Result<void> SnapshotWriter::put(const ChunkPlace& place, const CodedChunk& chunk, ChunkDone done,
                                 const std::atomic<bool>& has_failed) {
    auto& row = header_.rows[place.number]; // nobody else's
    row.shape = chunk.shape;
    row.content_bytes = static_cast<std::uint32_t>(place.bytes);
    row.used_bytes = chunk.used_bytes;
    row.stored_bytes = static_cast<std::uint32_t>(chunk.bytes.size());
    row.checksum = chunk.checksum;
    row.offset = allot(row.stored_bytes, round_up(place.bytes, k_alignment));
    auto claim = GPU_SLEEP_TRY(this->claim(row.stored_bytes, has_failed));
    GPU_SLEEP_TRY(file_.check_held());
    // Only ever read from: IoRequest serves both directions.
    queue_->submit({IoRequest::Kind::write, file_.fd(), const_cast<std::byte*>(chunk.bytes.data()),
                    row.stored_bytes, row.offset,
                    [done = std::move(done), held = std::move(claim)](Result<void> written) mutable {
                        held.reset();
                        done(std::move(written));
                    }});
    return {};
}

Result<void> SnapshotWriter::write_header() {
    const auto bytes = front_.bytes();
    encode_header(header_, bytes);
    return move_bytes(IoRequest::Kind::write, file_.fd(), bytes.data(), bytes.size(), 0);
}

Result<Snapshot> SnapshotWriter::finish() {
    {
        const MutexLock lock(mutex_);
        header_.file_bytes = end_;
    }
    GPU_SLEEP_TRY(file_.cut(header_.file_bytes));
    {
        const auto claim = GPU_SLEEP_TRY(this->claim(header_.header_bytes, false));
        GPU_SLEEP_TRY(write_header());
    }
    GPU_SLEEP_TRY(file_.commit());
    return Snapshot{std::move(file_), std::move(header_)};
}

} // namespace gpu_sleep::store
