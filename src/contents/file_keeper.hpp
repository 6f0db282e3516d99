// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in compressed files: a batch is a snapshot, whose extents are the parts of ranges that were added.

#pragma once

#include "contents/keeper.hpp"
#include "store/snapshot_writer.hpp"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace gpu_sleep::contents {

class FileBatch final : public Batch {
public:
    FileBatch(Keeper& keeper, Label label, const SaveOptions& options)
        : Batch(keeper), label_(std::move(label)), directory_(options.directory) {}

    /// What the file takes if nothing can be made smaller.
    [[nodiscard]] Result<Bytes> needs() const override;
    [[nodiscard]] Bytes held() const noexcept override {
        return snapshot_ && !snapshot_->file.is_left() ? snapshot_->header.file_bytes : 0;
    }
    [[nodiscard]] std::filesystem::path directory() const override {
        return held() != 0 ? directory_->path() : std::filesystem::path();
    }
    /// A file that stays anyway, for a sleep that keeps the same.
    [[nodiscard]] bool retain() noexcept override;
    [[nodiscard]] bool take_back(std::string_view tag, const SaveOptions& options) override;
    [[nodiscard]] Result<std::shared_ptr<const store::SnapshotDirectory>> keep_file() override;
    void note_flushed() noexcept override { is_name_flushed_ = true; }
    void retire(Files files) noexcept override;
    [[nodiscard]] std::optional<std::filesystem::path> left_behind() const override;

private:
    friend class FileKeeper;
    [[nodiscard]] Bytes reserve(Bytes bytes) override;
    /// Which extent has the contents at `at`.
    [[nodiscard]] std::size_t extent_at(Bytes at) const noexcept;
    [[nodiscard]] std::size_t chunks() const noexcept;
    /// The extents as the snapshot describes them.
    void describe(std::vector<store::SnapshotExtent>& extents) const;

    Label label_;
    std::shared_ptr<const store::SnapshotDirectory> directory_;
    bool stays_ = false;           ///< the file, when the contents are no longer needed
    bool is_name_flushed_ = false; ///< under which it stays
    bool outlived_wake_ = false;   ///< it was there before the last sleep, whatever becomes of that
    Bytes bytes_ = 0;
    std::vector<Bytes> starts_; ///< of each extent
    std::optional<store::Snapshot> snapshot_;
};

class FileKeeper final : public Keeper {
public:
    [[nodiscard]] model::Store store() const noexcept override { return model::Store::file; }
    [[nodiscard]] std::string_view where() const noexcept override { return "files"; }
    [[nodiscard]] bool is_mendable() const noexcept override { return true; }
    [[nodiscard]] bool gives_at_once() const noexcept override { return false; }
    [[nodiscard]] Result<void> open(const model::Choice& choice, SaveOptions& options,
                                    std::vector<std::string>& notes) override;
    [[nodiscard]] std::unique_ptr<Batch> make_batch(Label label, const SaveOptions& options) override;
    void note_needs(Bytes needed, const Rehearsal& rehearsal, model::Report& report) const override;
    [[nodiscard]] Result<void> take(Transfer& transfer, std::span<Batch* const> batches) override;
    [[nodiscard]] Result<void> give(Transfer& transfer, std::span<const Move> blocks,
                                    Failures& failures) override;
    [[nodiscard]] Result<void> take_over(Handover& handover, Batch& batch,
                                         std::span<const Carried> parts) override;
    [[nodiscard]] Result<void> fetch(Handover& handover, std::span<const Fetched> parts,
                                     const MakeReady& make_ready) override;

private:
    /// Writes what `source` has of the batch to a new file.
    [[nodiscard]] static Result<void> write(FileBatch& batch, store::ChunkSource& source,
                                            const store::SnapshotWriteOptions& options);
    [[nodiscard]] static Result<void> write(Transfer& transfer, FileBatch& batch);
    /// Brings `parts`, all of one file.
    [[nodiscard]] static Result<void> fetch_from(Handover& handover, FileBatch& batch,
                                                 std::span<const Fetched> parts, const MakeReady& make_ready);
    /// Brings the extents that hold `blocks`, all of one file, to the device. `chunks`: of the longest file,
    /// for they share the ring.
    [[nodiscard]] static Result<void> read(Transfer& transfer, FileBatch& batch, std::span<const Move> blocks,
                                           std::size_t chunks);
};

} // namespace gpu_sleep::contents
