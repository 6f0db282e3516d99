// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeping ranges: drafted from a plan, then estimated, or carried out and admitted.

#pragma once

#include "contents/contents.hpp"
#include "contents/copy_check.hpp"

namespace gpu_sleep::contents {

/// What one sleep keeps, on all devices. The steps are seal(), lay_out(), begin(), take() and admit(); a dry
/// run does lay_out() alone. Until admit() nothing is kept: all is given back with it, but for what was
/// retained before and has not been written to. It must outlive the sessions that were given to it. Not
/// thread-safe, but for seal() and take() on different devices.
class Save {
public:
    /// `contents` outlives it. `devices`: how many share HostUse::staging.
    Save(Contents& contents, SaveOptions options, std::size_t devices);
    Save(const Save&) = delete;
    Save& operator=(const Save&) = delete;
    ~Save();

    /// Adds what to keep of a range that begins at `address`: `spans` of it, sorted and disjoint, none empty.
    /// `previous`: the kept range of its last sleep, whose places are used again where it is retained; it is
    /// forgotten with admit().
    [[nodiscard]] Number add(Label label, model::Store store, driver::DeviceAddress address,
                             std::vector<Span> spans, Number previous = 0);
    /// What it does with one device's contents.
    struct Figures {
        Bytes bytes = 0;  ///< that are to be kept
        Bytes stored = 0; ///< of those, that have a place; once it is laid out, as the next
        Bytes copied = 0; ///< of those, that are to be copied there
        Bytes moved = 0;  ///< what of the places is to be filled: what take() will count as progress
    };
    [[nodiscard]] Figures figures(int device) const noexcept {
        const auto part = parts_.find(device);
        return part == parts_.end() ? Figures() : static_cast<const Figures&>(part->second);
    }

    /// Takes the fingerprints of what is kept of the session's device: from here to the check on waking
    /// nothing can change unseen. Then measures how small the GPU can code what is new or has changed, where
    /// it has memory for that. Errors: out_of_host_memory, driver_failed, context_lost.
    [[nodiscard]] Result<void> seal(driver::DeviceSession& session);
    /// Decides on the place of each block: none for zeros, the one that it has where it is retained, else a
    /// new one. What has no seal yet counts as changed, and as no zeros.
    void lay_out();

    // Once it is laid out:
    /// What `store` must take at most, besides what it has. Errors: io_failed.
    [[nodiscard]] Result<Bytes> needs(model::Store store) const { return needs_of(batches_, store); }
    /// Bytes that go to other places than they were to, for want of room (SaveOptions::others).
    [[nodiscard]] Bytes spilled() const noexcept { return spilled_; }

    /// Reserves what it needs of the host. Errors: out_of_host_memory.
    [[nodiscard]] Result<void> begin();
    /// Copies what is to be copied of the session's device; then it is whole and flushed. Errors: those of
    /// take_into_cache() and store_from_device().
    [[nodiscard]] Result<void> take(driver::DeviceSession& session, ProgressCounter& progress);
    /// From here on the contents are kept, under the numbers that add() gave; Contents::forget() is the way
    /// back.
    void admit() noexcept;
    /// After admit(): renames files that are to stay to *.kept. Not before all are whole: a sleep that fails,
    /// or is killed, leaves only what the next one removes. Errors: out_of_disk, io_failed.
    [[nodiscard]] Result<void> keep_files();

private:
    struct Item {
        Number number = 0;
        driver::DeviceAddress address = 0;
        KeptRange* range = nullptr; ///< in ranges_
        model::Store store = model::Store::host;
        std::string tag;
        Number previous = 0;
        Contents::Lent lent{};                 ///< the previous range, from begin() to admit()
        std::vector<codec::BlockPlan> plans{}; ///< of each block; empty if all are raw
    };
    /// One device's part.
    struct Part : Figures {
        std::vector<Item> items;
        /// New ones, by store and tag, with the blocks that are to be copied there.
        std::map<std::pair<model::Store, std::string>, std::pair<Batch*, std::vector<Move>>> batches;
        std::vector<Move> replaced;   ///< blocks that get new contents in the places that they have
        std::set<Number> overwritten; ///< ranges that had some of those, once that has begun
        driver::DeviceSession::CodingSpace coding;
    };
    [[nodiscard]] Result<void> measure(driver::DeviceSession& session, Part& part) const;
    /// What becomes of a block.
    enum class Fate {
        zero,     ///< it needs no place
        as_kept,  ///< what is retained of it holds it as it is to be kept
        replaced, ///< it has changed, and fits in the place of that
        placed    ///< it needs a new place
    };
    /// That of block `i` of the item, of which `previous`, which may be null, is retained.
    [[nodiscard]] Fate fate_of(const Item& item, std::size_t i, const KeptRange* previous) const noexcept;
    /// What the item is retained as, where its places may be used again; else null.
    [[nodiscard]] const KeptRange* usable_previous(const Item& item, bool is_unchanged) const;
    /// What new places the item needs, if all goes to its store.
    [[nodiscard]] Bytes new_bytes(const Item& item) const;
    /// How much of each tag may go to new places in the first of the stores, by device and tag: whole tags
    /// first, for as long as there is room, then whole blocks.
    using Allowances = std::map<std::pair<int, std::string>, Bytes>;
    [[nodiscard]] Allowances share_room() const;
    /// Tags none of whose contents has changed since they were put in places that cannot be replaced one by
    /// one, and are still whole there.
    [[nodiscard]] std::set<std::string> unchanged_tags(const Part& part);
    /// `allowance`: of the item's tag, less what the item takes of it.
    void lay_out(Part& part, int device, Item& item, bool is_unchanged, Bytes& allowance);
    /// Begins to check what the part has in host memory: what was there before, or what has been copied.
    [[nodiscard]] Result<std::unique_ptr<CopyCheck>> check(const Part& part, bool was_there) const;
    /// Ends the check, and copies again what it has found. Errors: io_failed (that did not help), as take().
    [[nodiscard]] Result<void> mend(Transfer& transfer, Part& part, CopyCheck& check) const;
    [[nodiscard]] static Result<void> take_from_all(Transfer& transfer, Part& part);

    Contents& contents_;
    SaveOptions options_;
    HostUse limits_; ///< for each device
    std::map<int, Part> parts_;
    std::map<Number, KeptRange> ranges_;
    Batches batches_;
    Bytes spilled_ = 0;
    std::vector<Batch*> taken_back_; ///< whose retained contents are to be used as they are; until begin()
};

} // namespace gpu_sleep::contents
