// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What every kind of place for contents can do: a keeper for the kind, and a batch for what one sleep puts
// there. A store is one of each.

#pragma once

#include "base/threads.hpp"
#include "contents/block.hpp"
#include "contents/host_use.hpp"
#include "contents/progress.hpp"
#include "contents/staging.hpp"
#include "driver/device_session.hpp"
#include "model/model.hpp"
#include "store/snapshot_directory.hpp"

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::contents {

class Keeper;

/// One device's part of a save or a restore, for its thread alone.
struct Transfer {
    driver::DeviceSession& session; ///< its context is current
    ProgressCounter& progress;
    store::Pinner& pinner;
    HostUse options;                    ///< for this device
    std::unique_ptr<Staging> staging{}; ///< made when the first keeper needs it
    /// That move contents to the staging; made likewise. Between calls of keepers they have nothing to do.
    std::unique_ptr<ThreadPool> movers{};

    /// Waits for copies that still use the staging.
    ~Transfer();
    /// Notes that a copy of `bytes` was queued, and tells what has passed meanwhile. Does not wait. Errors:
    /// cancelled, timed_out, driver_failed, context_lost.
    [[nodiscard]] Result<void> queued(Bytes bytes);
    /// Tells what has passed. Errors: as queued().
    [[nodiscard]] Result<void> look();
    /// Waits until all that was queued has passed. Errors: as queued().
    [[nodiscard]] Result<void> wait();
};

/// A move of contents from one store to another, without a device. For one thread.
struct Handover {
    ProgressCounter& progress;
    HostUse options;
};

/// What a save has of the stores: each keeper's part is what its open() has put there.
struct SaveOptions {
    std::shared_ptr<const store::SnapshotDirectory> directory; ///< null when nothing goes to a file
    bool keeps_files = false;    ///< files stay when their contents are no longer needed
    bool takes_prepared = false; ///< new contents go to memory that was prepared, as far as there is any
    bool copies_all = false;     ///< also what is retained and has not changed
    bool checks_copies = false;  ///< reads what is in host memory before the sleep counts
    /// New contents that may go to host memory: whole tags as far as they fit, then whole blocks; the rest
    /// goes to files. Unset: all.
    std::optional<Bytes> room_in_host{};
};

/// Whose contents a batch has.
struct Label {
    int device = 0;
    std::string tag;
};

/// What becomes of files whose contents are no longer needed.
enum class Files {
    as_asked, ///< kept if that was asked for
    removed
};

/// Contents of one tag on one device that one sleep puts in places of one kind. They are made together, and
/// what they take is given back together, or by parts. Filled by one transaction; from then on guarded as
/// Contents is.
class Batch {
public:
    explicit Batch(Keeper& keeper) noexcept : keeper_(keeper) {}
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    virtual ~Batch() = default;

    [[nodiscard]] Keeper& keeper() const noexcept { return keeper_; }

    // In this order, before the contents are kept:
    /// Contents to be kept, and where in the batch they will begin. They lie together there.
    [[nodiscard]] Bytes add(driver::AddressSpan memory);
    /// What the batch will take at most, in bytes of its kind. Takes nothing. Errors: io_failed.
    [[nodiscard]] virtual Result<Bytes> needs() const = 0;
    /// Reserves what it needs of the host, before anything is copied. Errors: out_of_host_memory.
    [[nodiscard]] virtual Result<void> begin() { return {}; }

    // While they are kept:
    /// Puts them out of reach of stray writes of this process's own threads, as far as its kind can, or
    /// within reach of copies. Errors: out_of_host_memory (they are still out of reach).
    virtual void protect() noexcept {}
    [[nodiscard]] virtual Result<void> unprotect() noexcept { return {}; }
    /// Whether copies would become faster by pin_some(), which does a part of what is to be done, for 1 ms,
    /// and returns whether there is more. Nobody may use the contents meanwhile; the mutex need not be held.
    [[nodiscard]] virtual bool has_unpinned() const noexcept { return false; }
    [[nodiscard]] virtual bool pin_some() noexcept { return false; }
    /// Undoes that, for all of it; false if something stays pinned. Nobody may use the contents meanwhile.
    [[nodiscard]] virtual bool unpin() noexcept { return true; }
    /// Where `span` of its contents can be read, which are within reach; in `buffer`, where they lie apart.
    /// Null if they are not in host memory. May throw for want of memory. On any thread, if nobody writes
    /// there.
    [[nodiscard]] virtual const std::byte* memory(Span /*span*/, std::vector<std::byte>& /*buffer*/) const {
        return nullptr;
    }
    /// Copies `span` of its contents to `to`, also while they are out of reach. Errors: refused (they are not
    /// in host memory), io_failed.
    [[nodiscard]] virtual Result<void> read(Span span, std::byte* to) const;
    /// What it holds, in bytes of its kind.
    [[nodiscard]] virtual Bytes held() const noexcept = 0;
    /// Where its file is; empty if it has none.
    [[nodiscard]] virtual std::filesystem::path directory() const { return {}; }
    /// `span` is no longer needed. Returns whether more has become worth giving back.
    [[nodiscard]] virtual bool forget(Span span) noexcept;
    [[nodiscard]] bool is_needed() const noexcept { return live_ != 0; }
    /// Contents of it that are needed.
    [[nodiscard]] Bytes live() const noexcept { return live_; }
    /// Its contents are to stay, though their memory is awake. Returns whether they can: then what it holds
    /// apart from host memory is let go, and may be taken back.
    [[nodiscard]] virtual bool retain() noexcept { return false; }
    /// Whether what is retained can be used as it is, for the contents of `tag` in a sleep with `options`.
    [[nodiscard]] virtual bool take_back(std::string_view /*tag*/, const SaveOptions& /*options*/) {
        return true;
    }
    /// Makes its file one that stays, once the directory that this returns is flushed and note_flushed() was
    /// called; null if it has none, or it stays already. Errors: out_of_disk, io_failed.
    [[nodiscard]] virtual Result<std::shared_ptr<const store::SnapshotDirectory>> keep_file() {
        return std::shared_ptr<const store::SnapshotDirectory>();
    }
    virtual void note_flushed() noexcept {}

    /// A part of it that is worth giving back. It counts as tried from then on, whatever comes of it.
    [[nodiscard]] virtual std::optional<std::size_t> take_waste() noexcept { return std::nullopt; }
    [[nodiscard]] virtual bool has_waste() const noexcept { return false; }
    /// Where the part is.
    [[nodiscard]] virtual Span part(std::size_t /*index*/) const noexcept { return {}; }
    /// Gives back what of the part lies in none of `needed`, which are in order, and returns how much. Nobody
    /// may use the contents meanwhile; the mutex need not be held. May throw for want of memory: then nothing
    /// has changed.
    [[nodiscard]] virtual Bytes shrink(std::size_t /*index*/, std::span<const Span> /*needed*/) { return 0; }
    virtual void note_shrunk(std::size_t /*index*/, Bytes /*given_back*/) noexcept {}

    // Once nothing of it is needed:
    /// Lets go of what it has outside the process, or leaves it there if that was asked for.
    virtual void retire(Files /*files*/) noexcept {}
    /// Gives back a little, which takes 0.4 ms; false when the rest goes at once, with the batch.
    [[nodiscard]] virtual bool give_back_some() noexcept { return false; }
    /// A file that could not be removed.
    [[nodiscard]] virtual std::optional<std::filesystem::path> left_behind() const { return std::nullopt; }

protected:
    /// Contents to keep, where they are, and where they go.
    struct Source {
        driver::AddressSpan memory;
        Bytes at = 0;
    };
    /// Reserves a place of `bytes` behind those that were added before.
    [[nodiscard]] virtual Bytes reserve(Bytes bytes) = 0;

    std::vector<Source> sources_; ///< until they are taken

private:
    Keeper& keeper_;
    Bytes live_ = 0; ///< of contents that are needed
};

/// Contents that are kept, and go to another batch: blocks that lie together in both.
struct Carried {
    std::span<const Block> blocks; ///< where they are now; of the kept range
    Bytes bytes = 0;
    [[nodiscard]] const Place& from() const noexcept { return blocks.front().place; }
    [[nodiscard]] Span span() const noexcept { return {from().at, bytes}; }
};

/// Contents to be brought to host memory.
struct Fetched {
    Place from;
    std::span<std::byte> to;
};

/// Waits until host memory has its pages, and heeds the asker meanwhile.
using MakeReady = std::function<Result<void>(std::span<const std::byte>)>;

/// A block to be copied between its place and its memory on the device.
struct Move {
    Number range = 0;
    Place place;
    driver::AddressSpan device;
};

/// Ranges that could not be brought back, and why.
using Failures = std::map<Number, Error>;

/// What a dry run supposes.
struct Rehearsal {
    const model::Choice& choice;
    bool is_fallback = false; ///< host memory cannot take it: it goes to files, if the request says so
    HostUse options{};
};

/// All places of one kind. Knows nothing of the ledger, of transactions and of the agent, and has no mutex
/// that outlasts a call. Thread-safe as far as different batches go.
class Keeper {
public:
    Keeper() = default;
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;
    virtual ~Keeper() = default;

    [[nodiscard]] virtual model::Store store() const noexcept = 0;
    /// Where its contents are, for people: "host memory".
    [[nodiscard]] virtual std::string_view where() const noexcept = 0;
    /// Whether what was found damaged may be put right from outside, so that a wake is worth another try.
    [[nodiscard]] virtual bool is_mendable() const noexcept = 0;
    /// Whether give() only queues copies, and waits for no more than host memory. It is then called for what
    /// is mapped while more is being mapped.
    [[nodiscard]] virtual bool gives_at_once() const noexcept = 0;
    /// Whether replace() may write to places of contents that are retained, block by block. Where it may not,
    /// a tag's contents are used as they are if none has changed.
    [[nodiscard]] virtual bool may_replace() const noexcept { return false; }

    /// Opens what `choice` wants of this store, into its part of `options`. Adds to `notes` what its user
    /// should know of what is there. Errors: not_permitted, io_failed.
    [[nodiscard]] virtual Result<void> open(const model::Choice& /*choice*/, SaveOptions& /*options*/,
                                            std::vector<std::string>& /*notes*/) {
        return {};
    }
    /// Takes nothing yet.
    [[nodiscard]] virtual std::unique_ptr<Batch> make_batch(Label label, const SaveOptions& options) = 0;
    /// Has `report` say what `needed` (Batch::needs() of all batches) are, and whether they are there.
    virtual void note_needs(Bytes needed, const Rehearsal& rehearsal, model::Report& report) const = 0;

    /// Brings the contents of `batches`, all of this keeper, from the device to their places. They are whole
    /// and flushed once it returns and the session was synchronized. After an error copies may still be under
    /// way. Errors: out_of_host_memory, out_of_disk, io_failed, not_permitted, driver_failed, context_lost,
    /// cancelled, timed_out.
    [[nodiscard]] virtual Result<void> take(Transfer& transfer, std::span<Batch* const> batches) = 0;
    /// Brings `blocks`, all of this keeper, which has contents in their places, from the device once more.
    /// Only where may_replace(). Queues copies, and returns. Errors: as take().
    [[nodiscard]] virtual Result<void> replace(Transfer& transfer, std::span<const Move> blocks);
    /// Brings contents that other keepers have to the places of `batch`, which is of this keeper and has
    /// begun: parts[i] is what was added as the i-th. They are whole and flushed once it returns; they stay
    /// where they were, too. Errors: out_of_host_memory, out_of_disk, io_failed, not_permitted, damaged (what
    /// was kept, which the message names), cancelled, timed_out.
    [[nodiscard]] virtual Result<void> take_over(Handover& handover, Batch& batch,
                                                 std::span<const Carried> parts) = 0;
    /// Brings `parts`, all of this keeper, to host memory, each once `make_ready` has said that it can be
    /// written to. Only keepers whose contents lie in no memory (Batch::memory()). Errors: as take_over(),
    /// those of `make_ready`.
    [[nodiscard]] virtual Result<void> fetch(Handover& handover, std::span<const Fetched> parts,
                                             const MakeReady& make_ready);

    /// Brings `blocks`, all of this keeper, to the device: they are there once the session was synchronized.
    /// Ranges that this cannot be done for are added to `failures`. Errors: those of the device and of
    /// waiting, as take().
    [[nodiscard]] virtual Result<void> give(Transfer& transfer, std::span<const Move> blocks,
                                            Failures& failures) = 0;
};

} // namespace gpu_sleep::contents
