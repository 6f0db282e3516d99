// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Kept ranges: which parts of a range's memory are kept, as blocks, each with its fingerprint and its place.
// What one sleep puts in one place, the host cache or a store, and what of it is needed.

#pragma once

#include "codec/block_code.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "driver/memory.hpp"
#include "model/model.hpp"
#include "store/host_arena.hpp"
#include "store/host_budget.hpp"
#include "store/parcel_store.hpp"

#include <list>

namespace gpu_sleep::contents {

class Batch;

/// The number of a kept range, which is never used again. 0 is none.
using Number = std::uint64_t;

/// A block is what one fingerprint covers.
inline constexpr Bytes k_block_bytes = driver::k_fingerprint_block_bytes;

/// Where a block is kept: in host memory, or in chunks of a store (store/coding.hpp), which are brought back
/// whole.
struct Place {
    Batch* batch = nullptr;  ///< lives as long as any block that lies in it
    Bytes at = 0;            ///< from the start of the batch's contents
    std::uint32_t bytes = 0; ///< of those, that are its: of a coded block, what it may take
    /// How GPUs have coded it (codec/block_code.hpp); raw in chunks, too.
    codec::BlockClass block_class = codec::BlockClass::raw;

    [[nodiscard]] bool is_coded() const noexcept { return block_class != codec::BlockClass::raw; }
    [[nodiscard]] Span span() const noexcept { return {at, bytes}; }
    [[nodiscard]] bool is_where(const Place& other) const noexcept {
        return batch == other.batch && at == other.at;
    }
};

struct Block {
    driver::Fingerprint seal; ///< of the bytes as the GPU held them
    Place place;              ///< no batch: all bytes are zero, and are stored nowhere

    [[nodiscard]] bool is_stored() const noexcept { return place.batch != nullptr; }
    [[nodiscard]] bool is_in(model::Store store) const noexcept;
};

/// What is kept of one range of the program's memory. Says which parts of the range it has, and nothing of
/// addresses.
struct KeptRange {
    std::vector<Span> spans;   ///< of the range: sorted and disjoint
    std::vector<Block> blocks; ///< of the first span first; the last of each span may be shorter
    Bytes stored = 0;          ///< of the program's bytes, those of blocks that have a place
    Bytes in_host = 0;         ///< what the places take of the host cache, once it is kept
    /// Its memory is awake: what is stored is a copy that the next sleep may use, and may be given back at
    /// any time.
    bool is_retained = false;
};

/// What the places of the range take, in any store.
[[nodiscard]] inline Bytes bytes_placed(const KeptRange& range) noexcept {
    return sum_of(range.blocks, [](const Block& block) { return block.place.bytes; });
}

/// Blocks that `bytes` are cut into.
[[nodiscard]] constexpr std::size_t block_count(Bytes bytes) noexcept {
    return static_cast<std::size_t>((bytes + k_block_bytes - 1) / k_block_bytes);
}

/// Calls `use(block, span, index)` for each block, in order; `span` is the part of the range that it holds.
template <class Range, class Use>
void for_each_block(Range& range, Use&& use) {
    std::size_t index = 0;
    for (const auto& span : range.spans)
        for (Bytes done = 0; done < span.bytes; done += k_block_bytes, ++index)
            use(range.blocks[index], Span{span.offset + done, std::min(k_block_bytes, span.bytes - done)},
                index);
}

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

/// What a block of `bytes` takes in the host cache, coded as `plan` says: a little more than now, for what it
/// holds later.
[[nodiscard]] Bytes room_for(const codec::BlockPlan& plan, Bytes bytes) noexcept;

/// Contents of one tag on one device that one sleep puts in one place. They are made together, and what they
/// take is given back together, or by parts: that of an arena. Filled by one transaction; from then on
/// guarded as Contents is.
class Batch {
public:
    /// In the host cache. `stock`, which may be null and lives until the batch has begun, has memory that is
    /// ready: the batch takes what it needs of it.
    Batch(Label label, store::HostBudget& budget, store::Pinner* pinner, store::HostArena* stock) noexcept
        : label_(std::move(label)), budget_(&budget), pinner_(pinner), stock_(stock) {}
    Batch(Label label, std::shared_ptr<store::ParcelStore> store) noexcept
        : label_(std::move(label)), is_cached_(false), store_(std::move(store)) {}
    /// Memory that nothing needs.
    explicit Batch(std::unique_ptr<store::HostArena> arena) noexcept : arena_(std::move(arena)) {}
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    [[nodiscard]] model::Store store() const noexcept {
        return is_cached_ ? model::Store::host : model::Store::file;
    }
    [[nodiscard]] bool is_cached() const noexcept { return is_cached_; }

    // In this order, before the contents are kept:
    /// A place for a block of `range`, which lies at `memory` and is to be coded as `plan` says, which may be
    /// raw. Where it follows the last one that was added, it does so there, too.
    [[nodiscard]] Place add(Number range, driver::AddressSpan memory, const codec::BlockPlan& plan = {});
    /// What the batch will take at most, in bytes of its kind. Takes nothing. Errors: io_failed.
    [[nodiscard]] Result<Bytes> needs() const;
    /// Reserves what it needs of the host, before anything is copied. Errors: out_of_host_memory, io_failed.
    [[nodiscard]] Result<void> begin();

    /// Once it has begun: one of them.
    [[nodiscard]] store::HostArena* arena() const noexcept { return arena_.get(); }
    [[nodiscard]] store::Parcel* parcel() const noexcept { return parcel_.get(); }
    /// Of a store: what lies together, on the device as well.
    [[nodiscard]] const std::vector<store::SnapshotExtent>& extents() const noexcept { return extents_; }
    /// Which extent has the contents at `at`, and where each begins.
    [[nodiscard]] std::size_t extent_at(Bytes at) const noexcept;
    [[nodiscard]] Bytes start_of(std::size_t extent) const noexcept { return starts_[extent]; }

    // While they are kept:
    /// Within reach of copies. Errors: out_of_host_memory (they are still out of reach).
    [[nodiscard]] Result<void> unprotect() noexcept { return arena_ ? arena_->unprotect() : Result<void>(); }
    /// Does a part of what makes copies faster, for 1 ms, and returns whether there is more. Nobody may use
    /// the contents meanwhile; the mutex need not be held.
    [[nodiscard]] bool pin_some() noexcept { return arena_ && arena_->pin_next(); }
    /// What it holds, in bytes of its kind.
    [[nodiscard]] Bytes held() const noexcept {
        return arena_ ? arena_->held() : parcel_ ? parcel_->bytes : 0;
    }
    /// `span` is no longer needed. Returns whether more has become worth giving back.
    [[nodiscard]] bool forget(Span span) noexcept;
    [[nodiscard]] bool is_needed() const noexcept { return live_ != 0; }
    /// Contents of it that are needed.
    [[nodiscard]] Bytes live() const noexcept { return live_; }
    /// Of its contents that are needed, so much more, or so much less, is of memory that is awake.
    void note_awake(Bytes bytes) noexcept { awake_ += bytes; }
    void note_not_awake(Bytes bytes) noexcept { awake_ -= bytes; }
    /// Its contents are to stay, though memory of them is awake. Returns whether they can: then, once all of
    /// that is, what it holds apart from host memory is let go, and may be taken back.
    [[nodiscard]] bool retain() noexcept;
    /// Whether what is retained can be used as it is, for the contents of `tag` in a sleep that puts them in
    /// `wanted`.
    [[nodiscard]] bool take_back(std::string_view tag, const store::ParcelStore& wanted);

    // Once nothing of it is needed:
    /// Lets go of what it has outside the process, or leaves it there if that was asked for.
    void retire(Files files) noexcept;
    /// A file that could not be removed.
    [[nodiscard]] std::optional<std::filesystem::path> left_behind() const;

private:
    Label label_;
    bool is_cached_ = true;
    store::HostBudget* budget_ = nullptr;
    store::Pinner* pinner_ = nullptr;
    store::HostArena* stock_ = nullptr;
    std::unique_ptr<store::HostArena> arena_;
    std::shared_ptr<store::ParcelStore> store_; ///< until it has begun
    std::vector<store::SnapshotExtent> extents_;
    std::vector<Bytes> starts_; ///< of each extent
    std::unique_ptr<store::Parcel> parcel_;
    Number last_range_ = 0; ///< that was added
    Bytes bytes_ = 0;       ///< that were added, each from a multiple of HostArena::k_alignment on
    Bytes live_ = 0;        ///< of contents that are needed
    Bytes awake_ = 0;       ///< of those, of which the memory is awake
    bool is_left_behind_ = false;
};

/// The contents of a block in the host cache, within reach, as the GPU held them: where they lie, or in
/// `buffer`. Null if what lies there is not a block of `bytes`, coded so. May throw for want of memory. On
/// any thread, if nobody writes there.
[[nodiscard]] const std::byte* read_block(const Place& place, Bytes bytes, std::vector<std::byte>& buffer);

using Batches = std::list<std::unique_ptr<Batch>>;

} // namespace gpu_sleep::contents
