// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing snapshots of a device's memory, and reading them back to it.

#include "contents/file_keeper.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "contents/host_copies.hpp"
#include "store/host_memory.hpp"
#include "store/snapshot_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace gpu_sleep::contents {
namespace {

/// Whether a failed reading is the file's trouble, and so that of its contents alone.
bool is_about_file(ErrorCode code) noexcept {
    return code == ErrorCode::damaged || code == ErrorCode::io_failed || code == ErrorCode::not_permitted ||
           code == ErrorCode::protocol_mismatch;
}

/// Has an error that bytes of a file are wrong say of which: one who puts them right mends it.
Error naming(const store::SnapshotFile& file, Error error) {
    if (error.code == ErrorCode::damaged)
        error.message = fmt::format("{}: {}; the process wakes once the bytes of that file are put back",
                                    file.path().string(), error.message);
    return error;
}

} // namespace

Bytes FileBatch::reserve(Bytes bytes) {
    starts_.push_back(bytes_);
    return std::exchange(bytes_, bytes_ + bytes);
}

std::size_t FileBatch::extent_at(Bytes at) const noexcept {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin()) -
           1;
}

std::size_t FileBatch::chunks() const noexcept {
    std::size_t sum = 0;
    for (const auto& source : sources_) sum += store::chunk_count(source.memory.bytes);
    return sum;
}

void FileBatch::describe(std::vector<store::SnapshotExtent>& extents) const {
    extents.reserve(sources_.size());
    for (const auto& source : sources_)
        extents.push_back({source.memory.address, source.memory.bytes, label_.tag, label_.device});
}

Result<Bytes> FileBatch::needs() const {
    auto description = GPU_SLEEP_TRY(store::describe_own());
    description.id.assign(32, '0'); // as long as the real one
    description.created = store::utc_now();
    describe(description.extents);
    return store::max_file_bytes(description);
}

Result<std::shared_ptr<const store::SnapshotDirectory>> FileBatch::keep_file() {
    if (is_name_flushed_) return std::shared_ptr<const store::SnapshotDirectory>();
    if (!stays_) GPU_SLEEP_TRY(snapshot_->file.keep());
    stays_ = true;
    return directory_;
}

bool FileBatch::retain() noexcept {
    if (!stays_ || !is_name_flushed_) return false;
    outlived_wake_ = true;
    const auto left = guarded([this] { return snapshot_->file.leave(); });
    if (left) directory_.reset();
    return left.has_value();
}

bool FileBatch::take_back(std::string_view tag, const SaveOptions& options) {
    // All that is in it, as it says, and where the next sleep wants it.
    auto& file = snapshot_->file;
    if (live() != bytes_ || tag != label_.tag || !options.directory || !file.is_left()) return false;
    auto taken = file.take_up(options.directory);
    directory_ = options.directory;
    if (taken) {
        const auto reader = store::SnapshotReader::open(file, snapshot_->header);
        if (reader) return true;
        taken = reader.error();
    }
    log::info("a kept file cannot be used again, so its contents are written to a new one: {}",
              taken.error().message);
    return false;
}

void FileBatch::retire(Files files) noexcept {
    if (!snapshot_) return;
    if (stays_ && (outlived_wake_ || files == Files::as_asked))
        snapshot_->file.let_stay();
    else
        snapshot_->file.unlink();
}

std::optional<std::filesystem::path> FileBatch::left_behind() const {
    if (!snapshot_ || !snapshot_->file.is_out_of_reach()) return std::nullopt;
    return snapshot_->file.path();
}

Result<void> FileKeeper::open(const model::Choice& choice, SaveOptions& options,
                              std::vector<std::string>& notes) {
    options.keeps_files = choice.keep_files;
    if (choice.directory.empty()) return {};
    auto directory = store::SnapshotDirectory::open(choice.directory);
    if (!directory && model::uses_files(choice)) return std::move(directory).error();
    if (!directory) return {};
    // Whoever looks here takes away what a crash has left.
    if (const auto removed = (*directory)->remove_leftovers(); !removed)
        log::debug("leftovers could not be removed: {}", removed.error().message);
    if (const auto doubtful = (*directory)->doubtful(); doubtful && !doubtful->empty()) {
        auto note =
            fmt::format("{} has files that may belong to processes not visible here: {}, the first {}",
                        choice.directory, counted(doubtful->size(), "snapshot"), doubtful->front().text());
        // A sleep may try again.
        if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
    }
    if (model::uses_files(choice)) options.directory = *std::move(directory);
    return {};
}

std::unique_ptr<Batch> FileKeeper::make_batch(Label label, const SaveOptions& options) {
    return std::make_unique<FileBatch>(*this, std::move(label), options);
}

void FileKeeper::note_needs(Bytes needed, const Rehearsal& rehearsal, model::Report& report) const {
    const auto& directory = rehearsal.choice.directory;
    if (needed == 0 || directory.empty()) return;
    auto space = store::SnapshotDirectory::free_space_in(directory);
    if (!space) {
        if (rehearsal.is_fallback)
            report.notes.push_back(space.error().message + ": nothing could be put there");
        else
            refuse(report, space.error().message + ": it would fail", space.error().code);
        return;
    }
    std::string limit;
    if (const auto headroom = store::host_headroom_beyond(rehearsal.options.host_reserve);
        space->in_memory && headroom.bytes < space->bytes) {
        space->bytes = headroom.bytes;
        limit = fmt::format(", in host memory ({})", headroom.limited_by);
    }
    report.notes.push_back(
        fmt::format("{} at most {} in files in {}, and {} are free there{}{}",
                    rehearsal.is_fallback ? "without enough host memory, needs" : "needs",
                    format_bytes(needed), directory, format_bytes(space->bytes), limit,
                    needed <= space->bytes ? "" : ": it fails unless the files compress enough"));
}

Result<void> FileKeeper::take(Transfer& transfer, std::span<Batch* const> batches) {
    std::size_t chunks = 0; // of the longest file: they share the ring
    bool in_memory = false;
    for (const auto* const each : batches) {
        const auto& batch = static_cast<const FileBatch&>(*each);
        chunks = std::max(chunks, batch.chunks());
        in_memory |= batch.directory_->is_in_memory();
    }
    const auto slots = Staging::slots_for(chunks, in_memory, transfer.options);
    for (auto* const each : batches) {
        auto& batch = static_cast<FileBatch&>(*each);
        GPU_SLEEP_TRY(with_staging(transfer.staging, transfer.session, transfer.pinner, slots,
                                   transfer.options, transfer.progress,
                                   [&](Staging&) { return write(transfer, batch); }));
        batch.sources_ = {};
    }
    return {};
}

Result<void> FileKeeper::write(FileBatch& batch, store::ChunkSource& source,
                               const store::SnapshotWriteOptions& options) {
    auto description = GPU_SLEEP_TRY(store::describe_own());
    batch.describe(description.extents);
    auto written = store::write_snapshot(batch.directory_, std::move(description), source, options);
    if (!written) {
        auto error = std::move(written).error();
        if (error.code == ErrorCode::out_of_disk)
            error.message = fmt::format("{}: {}", batch.directory_->path().string(), error.message);
        return error;
    }
    batch.snapshot_ = *std::move(written);
    return {};
}

Result<void> FileKeeper::write(Transfer& transfer, FileBatch& batch) {
    std::vector<store::SnapshotExtent> extents;
    batch.describe(extents);
    std::vector<driver::AddressSpan> spans;
    spans.reserve(batch.sources_.size());
    for (const auto& source : batch.sources_) spans.push_back(source.memory);
    auto& staging = *transfer.staging;
    DeviceSource source(transfer.session, staging, std::move(spans), extents, transfer.progress);
    store::SnapshotWriteOptions options;
    options.under_way = staging.ahead();
    options.buffer_bytes = std::min(transfer.options.staging, staging.buffer_bytes());
    options.memory.reserve = transfer.options.host_reserve;
    options.flushing = [&](bool begins) { transfer.progress.note_call(begins); };
    return write(batch, source, options);
}

Result<void> FileKeeper::take_over(Handover& handover, Batch& batch, std::span<const Carried> parts) {
    auto& file = static_cast<FileBatch&>(batch);
    for (const auto& part : parts) GPU_SLEEP_TRY(part.from().batch->unprotect());
    std::vector<store::SnapshotExtent> extents;
    file.describe(extents);
    store::SnapshotWriteOptions options;
    options.memory.reserve = handover.options.host_reserve;
    options.flushing = [&](bool begins) { handover.progress.note_call(begins); };
    GPU_SLEEP_TRY(with_buffers(handover.options, [&](Bytes buffer_bytes) {
        options.buffer_bytes = buffer_bytes;
        options.under_way = static_cast<std::size_t>(buffer_bytes / codec::k_chunk_bytes);
        auto source = MemorySource::create(parts, extents, handover.progress);
        return source ? write(file, **source, options) : std::move(source).error();
    }));
    file.sources_ = {};
    return {};
}

Result<void> FileKeeper::fetch(Handover& handover, std::span<const Fetched> parts,
                               const MakeReady& make_ready) {
    std::map<FileBatch*, std::vector<Fetched>> files;
    for (const auto& part : parts) files[static_cast<FileBatch*>(part.from.batch)].push_back(part);
    for (const auto& [file, wanted] : files) {
        auto done = fetch_from(handover, *file, wanted, make_ready);
        if (!done) return naming(file->snapshot_->file, std::move(done).error());
    }
    return {};
}

Result<void> FileKeeper::fetch_from(Handover& handover, FileBatch& batch, std::span<const Fetched> parts,
                                    const MakeReady& make_ready) {
    auto& snapshot = *batch.snapshot_;
    GPU_SLEEP_TRY(snapshot.file.hold());
    auto reader = GPU_SLEEP_TRY(store::SnapshotReader::open(snapshot.file, snapshot.header));
    // Whole extents: what was added together is forgotten, and goes elsewhere, together.
    std::vector<std::byte*> memory(batch.starts_.size());
    store::SnapshotReadOptions options;
    for (const auto& part : parts) {
        const auto end = part.from.at + part.to.size();
        for (auto extent = batch.extent_at(part.from.at);
             extent < batch.starts_.size() && batch.starts_[extent] < end; ++extent) {
            memory[extent] = part.to.data() + (batch.starts_[extent] - part.from.at);
            options.extents.push_back(extent);
        }
    }
    return with_buffers(handover.options, [&](Bytes buffer_bytes) {
        options.buffer_bytes = buffer_bytes;
        MemorySink sink(memory, make_ready, handover.progress);
        return reader.read(sink, options);
    });
}

Result<void> FileKeeper::give(Transfer& transfer, std::span<const Move> blocks, Failures& failures) {
    std::vector<FileBatch*> files; // as they come
    std::size_t chunks = 0;
    for (const auto& block : blocks) {
        auto* const file = static_cast<FileBatch*>(block.place.batch);
        if (std::find(files.begin(), files.end(), file) != files.end()) continue;
        files.push_back(file);
        chunks = std::max(chunks, file->snapshot_->header.rows.size());
    }
    for (auto* const file : files) {
        std::vector<Move> wanted;
        std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(wanted),
                     [&](const Move& block) { return block.place.batch == file; });
        std::sort(wanted.begin(), wanted.end(),
                  [](const Move& a, const Move& b) { return a.place.at < b.place.at; });
        auto done = read(transfer, *file, wanted, chunks);
        if (done) continue;
        if (!is_about_file(done.error().code)) return done;
        const auto error = naming(file->snapshot_->file, std::move(done).error());
        for (const auto& block : wanted) failures.try_emplace(block.range, error);
    }
    return {};
}

Result<void> FileKeeper::read(Transfer& transfer, FileBatch& batch, std::span<const Move> blocks,
                              std::size_t chunks) {
    auto& snapshot = *batch.snapshot_;
    GPU_SLEEP_TRY(snapshot.file.hold());
    auto reader = GPU_SLEEP_TRY(store::SnapshotReader::open(snapshot.file, snapshot.header));
    std::vector<driver::DeviceAddress> addresses(snapshot.header.description.extents.size());
    store::SnapshotReadOptions options;
    for (const auto& block : blocks) {
        const auto extent = batch.extent_at(block.place.at);
        if (!options.extents.empty() && options.extents.back() == extent) continue;
        addresses[extent] = block.device.address - (block.place.at - batch.starts_[extent]);
        options.extents.push_back(extent);
    }
    const auto read = [&](Staging& staging) {
        options.ahead = staging.ahead();
        options.buffer_bytes = std::min(transfer.options.staging, staging.buffer_bytes());
        DeviceSink sink(transfer.session, staging, addresses, transfer.progress);
        return reader.read(sink, options);
    };
    return with_staging(transfer.staging, transfer.session, transfer.pinner,
                        Staging::slots_for(chunks, false, transfer.options), transfer.options,
                        transfer.progress, read);
}

} // namespace gpu_sleep::contents
