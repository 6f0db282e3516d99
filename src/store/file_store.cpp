// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From parcels to snapshots.

#include "store/file_store.hpp"

#include "base/guard.hpp"
#include "store/snapshot_reader.hpp"
#include "store/snapshot_writer.hpp"

#include <optional>
#include <utility>

namespace gpu_sleep::store {

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
            is_name_flushed_ = stays_;
            return {};
        }
        const auto writer = writer_.lock();
        if (!writer) return make_error(ErrorCode::refused, "nothing is being put");
        auto whole = GPU_SLEEP_TRY(writer->finish());
        name = whole.file.path();
        bytes = whole.header.file_bytes;
        snapshot_ = std::move(whole);
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
        if (is_name_flushed_) return false;
        if (!stays_) {
            GPU_SLEEP_TRY(snapshot_->file.keep());
            stays_ = true;
            new_name_ = ++store_->names_;
            name = snapshot_->file.path();
        }
        return true;
    }

    Result<void> close() override {
        if (!is_name_flushed_) return make_error(ErrorCode::refused, "it is not kept");
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
            GPU_SLEEP_TRY(SnapshotReader::open(snapshot_->file, snapshot_->header));
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
    bool is_name_flushed_ = false;         ///< under which it stays
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
