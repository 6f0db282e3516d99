// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From parcels to snapshots: places in the file, room for them, and the header.

#include "store/file_store.hpp"

#include "base/guard.hpp"
#include "store/snapshot_reader.hpp"

#include <cstring>

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
    if (!claims_) return std::shared_ptr<const HostClaim>();
    HostShare share;
    GPU_SLEEP_TRY(claims_->budget->take(share, bytes));
    {
        const MutexLock lock(mutex_);
        share_.absorb(share, bytes);
    }
    const auto needed = [this, bytes] {
        const MutexLock lock(mutex_);
        return "at most " + format_bytes(max_file_bytes(header_.description) - end_ + bytes);
    };
    const auto look = [&]() -> Result<void> {
        if (has_failed) return make_error(ErrorCode::cancelled, "writing was given up");
        return {};
    };
    auto made = GPU_SLEEP_TRY(claims_->budget->claim(bytes, *claims_, needed, look));
    return std::make_shared<const HostClaim>(std::move(made));
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
    // Only ever read from: IoRequest serves both directions.
    queue_->submit({IoRequest::Kind::write, file_.fd(), const_cast<std::byte*>(chunk.bytes.data()),
                    row.stored_bytes, row.offset,
                    [done = std::move(done), held = std::move(claim)](Result<void> written) mutable {
                        held.reset();
                        done(std::move(written));
                    },
                    file_.identity()});
    return {};
}

Result<Snapshot> SnapshotWriter::finish() {
    {
        const MutexLock lock(mutex_);
        header_.file_bytes = end_;
    }
    GPU_SLEEP_TRY(file_.cut(header_.file_bytes));
    {
        const auto claim = GPU_SLEEP_TRY(this->claim(header_.header_bytes, false));
        const auto bytes = front_.bytes();
        encode_header(header_, bytes);
        GPU_SLEEP_TRY(move_bytes(
            {IoRequest::Kind::write, file_.fd(), bytes.data(), bytes.size(), 0, {}, file_.identity()}));
    }
    GPU_SLEEP_TRY(file_.commit());
    const MutexLock lock(mutex_);
    return Snapshot{std::move(share_), std::move(file_), std::move(header_)};
}

class FileParcel final : public Parcel {
public:
    FileParcel(std::shared_ptr<FileStore> store, SnapshotDescription description)
        : Parcel(*store), store_(std::move(store)), description_(std::move(description)) {
        bytes = max_file_bytes(description_);
        buffer_bytes = header_bytes_of(description_);
    }

    Result<PutChunk> put() override {
        snapshot_.reset();
        SnapshotWriteOptions options;
        options.memory.budget = store_->memory_;
        const std::shared_ptr writer =
            GPU_SLEEP_TRY(SnapshotWriter::create(store_->directory_, description_, options));
        writer_ = writer;
        return PutChunk([writer](const ChunkPlace& place, const CodedChunk& chunk, ChunkDone done,
                                 const std::atomic<bool>& has_failed) {
            return writer->put(place, chunk, std::move(done), has_failed);
        });
    }

    Result<void> flush() override {
        if (snapshot_) {
            if (stays_) GPU_SLEEP_TRY(store_->flush_names(new_name_));
            is_kept = stays_;
            return {};
        }
        const auto writer = writer_.lock();
        if (!writer) return make_error(ErrorCode::refused, "nothing is being put");
        auto whole = GPU_SLEEP_TRY(writer->finish());
        name = whole.file.path();
        bytes = whole.header.file_bytes;
        snapshot_.emplace(std::move(whole));
        return {};
    }

    Result<GetChunk> get() override {
        GPU_SLEEP_TRY(snapshot_->file.hold());
        auto opened = GPU_SLEEP_TRY(SnapshotReader::open(snapshot_->file, snapshot_->header));
        const auto reader = std::make_shared<const SnapshotReader>(std::move(opened));
        auto get = GPU_SLEEP_TRY(reader->chunks());
        return GetChunk([reader, get = std::move(get)](const ChunkPlace& place, std::byte* to, auto done) {
            return get(place, to, std::move(done));
        });
    }

    Result<bool> keep() override {
        if (is_kept) return false;
        if (!stays_) {
            GPU_SLEEP_TRY(snapshot_->file.keep());
            stays_ = true;
            new_name_ = ++store_->names_;
            name = snapshot_->file.path();
        }
        return true;
    }

    Result<void> close() override {
        if (!is_kept) return make_error(ErrorCode::refused, "it is not kept");
        outlived_wake_ = true;
        GPU_SLEEP_TRY(snapshot_->file.leave());
        bytes = 0;
        store_.reset();
        return {};
    }

    Result<void> open() override {
        const auto directory = GPU_SLEEP_TRY(SnapshotDirectory::open(where));
        auto store = std::make_shared<FileStore>(directory, HostBudget::own());
        GPU_SLEEP_TRY(snapshot_->file.take_up(directory));
        auto opened = guarded([&]() -> Result<void> {
            static_cast<void>(GPU_SLEEP_TRY(SnapshotReader::open(snapshot_->file, snapshot_->header)));
            name = snapshot_->file.path();
            return {};
        });
        if (!opened) {
            GPU_SLEEP_TRY(snapshot_->file.leave());
            return opened;
        }
        store_ = std::move(store);
        bytes = snapshot_->header.file_bytes;
        return {};
    }

    bool forget(bool stays) noexcept override {
        if (!snapshot_) return true;
        if (stays_ && (outlived_wake_ || stays))
            snapshot_->file.let_stay();
        else
            snapshot_->file.unlink();
        return !snapshot_->file.is_out_of_reach();
    }

private:
    std::shared_ptr<FileStore> store_; ///< null while it is closed
    const SnapshotDescription description_;
    std::weak_ptr<SnapshotWriter> writer_; ///< until it is whole
    std::optional<Snapshot> snapshot_;     ///< from then on
    bool stays_ = false;                   ///< the file, when the contents are no longer needed
    unsigned new_name_ = 0;                ///< the how manieth of the store it got then
    bool outlived_wake_ = false;           ///< it was there before the last sleep, whatever becomes of that
};

Result<std::unique_ptr<Parcel>> FileStore::reserve(std::vector<SnapshotExtent> extents) {
    auto description = GPU_SLEEP_TRY(describe_own());
    description.id.assign(32, '0'); // as long as the real one
    description.created = utc_now();
    description.extents = std::move(extents);
    return std::unique_ptr<Parcel>(new FileParcel(shared_from_this(), std::move(description)));
}

Result<void> FileStore::flush_names(unsigned nth) {
    if (not_flushed_ < nth && nth <= flushed_) return {};
    auto flushed = directory_->flush();
    (flushed ? flushed_ : not_flushed_) = names_;
    return flushed;
}

} // namespace gpu_sleep::store
