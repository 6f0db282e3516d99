// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// All contents that the process keeps: ranges by number, the batches that hold their blocks, and what is to
// be given back.

#pragma once

#include "contents/transfer.hpp"
#include "driver/api.hpp"
#include "model/model.hpp"

#include <set>

namespace gpu_sleep::contents {

/// A piece of an arena that is worth giving back. It lives until its batch is reaped.
struct Waste {
    store::HostArena* arena = nullptr;
    std::size_t part = 0;
    std::vector<Span> needed; ///< contents that lie in it, in order

    /// Gives it back, and returns how much that was. Nobody may use the batch's contents meanwhile; the mutex
    /// need not be held. May throw for want of memory: then nothing has changed.
    [[nodiscard]] Bytes give_back() const { return arena->shrink(part, needed); }
};

/// What `batches` hold of `store`.
[[nodiscard]] Bytes held_by(const Batches& batches, model::Store store) noexcept;
/// What those of `batches` that are of `store` will take at most. Errors: io_failed.
[[nodiscard]] Result<Bytes> needs_of(const Batches& batches, model::Store store);

/// Guarded by the mutex that guards the ledger, whose backings name kept ranges by number.
class Contents {
public:
    Contents(const driver::Api& api, HostUse options) noexcept
        : api_(api), options_(options), pinner_(api), retained_limit_(options.retained) {}

    Contents(const Contents&) = delete;
    Contents& operator=(const Contents&) = delete;

    [[nodiscard]] const driver::Api& api() const noexcept { return api_; }
    [[nodiscard]] const HostUse& options() const noexcept { return options_; }
    [[nodiscard]] store::HostBudget& budget() const noexcept { return *options_.budget; }
    [[nodiscard]] store::Pinner& pinner() noexcept { return pinner_; }
    /// Opens what `choice` wants of the stores, and the `others`, for what the first has no room for: the
    /// place where a new one is put in. Adds to `notes` what its user should know of what is there. Errors:
    /// not_permitted, io_failed.
    [[nodiscard]] Result<SaveOptions> open(const model::Choice& choice, std::span<const model::Store> others,
                                           std::vector<std::string>& notes) const;
    /// For contents that go to `store`. Takes nothing yet.
    [[nodiscard]] std::unique_ptr<Batch> make_batch(Label label, model::Store store,
                                                    const SaveOptions& options);
    /// Has `report` say what a dry run of `choice` needs (Batch::needs() of all batches), and whether that is
    /// there. `is_fallback`: host memory cannot take it, and it goes to files if the request says so.
    void note_needs(model::Store store, Bytes needed, const model::Choice& choice, bool is_fallback,
                    model::Report& report) const;

    [[nodiscard]] const KeptRange& at(Number range) const { return ranges_.at(range); }
    /// How much of the range is in `store`.
    [[nodiscard]] Bytes bytes_in(model::Store store, Number range) const;
    /// Whether any part of the range is in another store than `store`.
    [[nodiscard]] bool is_elsewhere(Number range, model::Store store) const;
    /// Where the files are that hold a part of the range, each once.
    [[nodiscard]] std::set<std::string> directories(Number range) const;
    /// Has the files that hold a part of the ranges stay when they are no longer needed. Returns whether any
    /// was to go. Errors: out_of_disk, io_failed.
    [[nodiscard]] Result<bool> keep_files(const std::vector<Number>& ranges);

    /// Copies `part` of the range to `to`. Errors: refused (not all of it is kept in host memory), io_failed,
    /// damaged.
    [[nodiscard]] static Result<void> read(const KeptRange& range, Span part, std::byte* to);

    /// Gives the range up. A batch that nothing needs any more is retired: it holds what it takes until
    /// reap(), but its file has no name any more. If there is something to give back, the function of
    /// when_wasted() is called. Nothing for number 0.
    void forget(Number range, Files files = Files::as_asked) noexcept;

    // Ranges whose memory is awake again.
    /// How much more may be retained, where `most` may be in all; with what is wasted beside it. Walks all
    /// pieces of host memory.
    [[nodiscard]] Bytes room_beside_retained(Bytes most) const noexcept;
    /// Keeps of the range what may stay: what is in host memory, if there is `room`, which that is taken off,
    /// and what is in files that stay. Forgets the rest, and the range if nothing is left. Returns whether it
    /// stays: until forget(), or until the memory is wanted.
    bool retain(Number range, Bytes& room) noexcept;
    /// The range if it is retained still, else null.
    [[nodiscard]] const KeptRange* find_retained(Number range) const noexcept;
    /// Host memory that is held for what is retained, with what is wasted beside it, and what is prepared.
    [[nodiscard]] Bytes retained() const noexcept;
    /// From now on at most so much is retained, in place of HostUse::retained; what is beyond is forgotten.
    void limit_retained(Bytes most) noexcept;
    /// Tells the user's other processes how much of what is retained can be had.
    void note_spare() const noexcept { budget().note_spare(retained()); }
    /// Gives up what is prepared, and then forgets what is retained, the oldest first, until `most` or less
    /// is. Returns how much that was.
    Bytes trim_retained(Bytes most) noexcept;
    // Host memory that is ready before there is anything to keep: the next sleep takes it. Counts as
    // retained, and is given back like that.
    [[nodiscard]] Bytes prepared(int device) const noexcept;
    [[nodiscard]] Bytes prepared() const noexcept;
    /// Devices for which something was.
    [[nodiscard]] std::vector<int> prepared_devices() const;
    static constexpr Bytes k_prepared_piece = store::HostArena::k_piece_bytes;
    /// How much more may be prepared, where `most` may be retained in all.
    [[nodiscard]] Bytes room_to_prepare(Bytes most) const noexcept;
    /// Makes one piece ready, for add_prepared(). The mutex need not be held. Errors:
    /// out_of_host_memory.
    [[nodiscard]] Result<std::unique_ptr<store::HostArena>> prepare_piece();
    /// Adds the pieces of `more`, which are ready. May throw for want of memory: then nothing has changed.
    void add_prepared(int device, store::HostArena& more);
    /// Gives up what is prepared for the device beyond `most` bytes. May throw, as add_prepared().
    void limit_prepared(int device, Bytes most);

    /// Puts what is kept and retained out of reach while nothing is copied.
    void protect() noexcept;

    /// A retained range while a save writes to its places.
    using Lent = std::map<Number, KeptRange>::node_type;
    [[nodiscard]] Lent lend(Number range) noexcept { return ranges_.extract(range); }
    /// It is as it was.
    void take_back(Lent&& lent) noexcept;
    /// It is no longer needed, but for places that `successor`, of the same spans, has taken over; null for
    /// none.
    void end(Lent&& lent, const KeptRange* successor) noexcept;

    /// Retired batches, for the caller to destroy where it takes nobody's time: unpinning takes 12 ms a GiB.
    [[nodiscard]] Batches reap() noexcept { return std::exchange(retired_, {}); }
    /// Sets a function to call when there is something to reap, or to give back. It is called by whoever
    /// frees memory, with the mutex held, and must neither take memory nor wait.
    void when_wasted(std::function<void()> told) { told_ = std::move(told); }
    /// What to give back; then note_shrunk() is told how much that was. Ranges may be forgotten meanwhile.
    /// Nothing if there is none.
    [[nodiscard]] std::optional<Waste> find_waste();
    static void note_shrunk(const Waste& waste, Bytes given_back) noexcept {
        waste.arena->note_shrunk(waste.part, given_back);
    }
    /// Whether there is something to reap, or to give back.
    [[nodiscard]] bool has_waste() const noexcept;

    /// A batch that is in use, and whose memory is still to be pinned; null if there is none.
    [[nodiscard]] Batch* find_unpinned() noexcept;
    /// Unpins all host memory that is held: 12 ms a GiB. find_unpinned() gives it from then on. Returns false
    /// if the driver still has any, also of what was given back before. No transaction may be under way.
    [[nodiscard]] bool unpin() noexcept;

    /// What the batches hold that are in use: host memory, or files.
    [[nodiscard]] Bytes held(model::Store store) const noexcept {
        return held_by(batches_, store) + (store == model::Store::host ? prepared() : 0);
    }
    /// Where the files of these are, each once.
    [[nodiscard]] std::vector<std::string> directories() const;
    /// Host memory of those that are retired.
    [[nodiscard]] Bytes retired_bytes() const noexcept { return held_by(retired_, model::Store::host); }
    /// Files of retired batches that could not be removed.
    [[nodiscard]] std::vector<std::filesystem::path> files_left_behind() const;
    /// Removes all files, but for those to be kept: the process is ending.
    void remove_files() noexcept;

    /// A number for a range that admit() will bring.
    [[nodiscard]] Number next_number() noexcept { return next_number_++; }
    /// From here on these are kept. `batches` hold all the blocks of `ranges`, which bear numbers of
    /// next_number().
    void admit(std::map<Number, KeptRange>& ranges, Batches& batches) noexcept;
    /// From here on ranges that sleep lie where `ranges` says, which has the same blocks; places that they
    /// have no longer are given up. `batches` hold the new ones.
    void relocate(std::map<Number, KeptRange>& ranges, Batches& batches) noexcept;

private:
    /// What all ranges take of the host cache that are retained, or all others.
    [[nodiscard]] Bytes in_host(bool are_retained) const noexcept;
    void forget_blocks(const KeptRange& range, const KeptRange* successor, Files files) noexcept;
    /// Returns whether more is to be given back.
    bool forget_part(Batch& batch, Span part, Files files) noexcept;
    void retire(const Batch& batch, Files files) noexcept;

    const driver::Api& api_;
    const HostUse options_;
    DriverPinner pinner_;

    std::map<Number, KeptRange> ranges_;
    Batches batches_;
    Batches retired_;
    std::map<int, Batches> stocks_; ///< memory that is prepared: one of each device, or none
    Bytes retained_limit_;
    Number next_number_ = 1;
    std::function<void()> told_ = [] {};
};

} // namespace gpu_sleep::contents
