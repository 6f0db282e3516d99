// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The record of all memory that the agent manages: every backing and where it is mapped, its tag, device,
// access grants, preserved spans and residence. It calls nobody: numbers stand for handles and kept ranges
// of other modules.

#pragma once

#include "model/model.hpp"

namespace gpu_sleep::ledger {

/// The index of a tag in its ledger; never reused once a backing or a policy has it.
using TagId = std::uint32_t;

/// The kept contents of a backing.
struct Kept {
    std::uint64_t range = 0; ///< the kept range's number; 0 for none
    Bytes bytes = 0;         ///< of the backing, that it holds for the next wake
};

/// Physical memory of one handle, and the one mapping that shows it. Sizes and addresses are multiples of the
/// device's granularity.
struct Backing {
    std::uint64_t address = 0; ///< of its mapping; the same for life
    Bytes bytes = 0;           ///< of the handle and of the mapping
    Bytes allocated = 0;       ///< of those, what the program asked for
    TagId tag = 0;
    int device = 0;
    std::uint64_t access = 0;      ///< mask of the devices that may read and write it
    bool shared = false;           ///< several small allocations lie in it
    bool needs_refill = false;     ///< awake, but dropped by an earlier sleep
    bool mapped = false;           ///< its address shows its handle
    bool slept_by_program = false; ///< the program itself asked that it sleep; until it wakes
    const char* stay_reason =
        nullptr;                  ///< why it has to stay on the GPU, in static text; null when it may sleep
    std::uint64_t handle = 0;     ///< the driver's physical memory; 0 when it has none
    bool host_backed = false;     ///< that is host memory, which its devices reach across the link
    bool stays_in_common = false; ///< for others have it, too: it may sleep if all of them do
    bool imported = false;        ///< of another process, from which a wake gets it again
    bool holds_contents = false;  ///< asleep in place: its handle has all its contents, and no kept range
    bool was_host_backed = false; ///< asleep without a handle, it ran from host memory until then
    std::uint64_t number = 0;     ///< in the order in which they were added; given by the ledger
    std::vector<Span> preserved;  ///< sorted, disjoint, not touching
    Kept kept; ///< while awake, the range of its last sleep, 0 bytes: what is retained for the next

    [[nodiscard]] model::Residence residence() const noexcept { return residence_; }
    [[nodiscard]] std::uint64_t end() const noexcept { return address + bytes; }
    [[nodiscard]] bool is_asleep() const noexcept { return residence_ != model::Residence::device; }
    /// Whether preserved spans cover all that the program asked for, so that dropping the backing loses
    /// nothing.
    [[nodiscard]] bool is_wholly_preserved() const noexcept;
    /// Asleep, how much of it a wake sets to zero.
    [[nodiscard]] Bytes lost() const noexcept { return holds_contents ? 0 : bytes - kept.bytes; }
    /// Whether it was dropped with contents that nobody kept.
    [[nodiscard]] bool has_lost_contents() const noexcept { return has_lost_contents_; }

private:
    friend class Ledger;
    /// How much of `span` is what the program asked for.
    [[nodiscard]] Bytes bytes_of_program(const Span& span) const noexcept;

    model::Residence residence_ = model::Residence::device;
    bool has_lost_contents_ = false; ///< decided when it is dropped: parts may be freed while it sleeps
};

struct Tag {
    std::string name;
    model::TagPolicy policy;
    bool is_separable = false; ///< the program does without it while it sleeps, whoever put it to sleep
    Bytes live_bytes = 0;      ///< of its memory, so much is placed in host memory as it is allocated
};

/// Whether a backing may go from one residence to another in one step:
///   device  -> kept, dropped         a sleep
///   kept    -> device                a wake
///   kept    -> dropped               a deeper sleep
///   kept    -> damaged               a wake that found what is kept damaged
///   dropped -> device, damaged       a wake (damaged when a preserved span of it was)
///   damaged -> device                a wake, after what is kept was put right from outside
///   damaged -> dropped               the operator gave the contents up
[[nodiscard]] bool may_move(model::Residence from, model::Residence to) noexcept;

/// Backings in the order of their addresses, and the tags. Not thread-safe: its owner guards it with one
/// mutex.
class Ledger {
public:
    using Backings = std::map<std::uint64_t, Backing>;

    /// The id of `name`, made with the default policy if it is new. `name` must be a valid tag.
    TagId tag_id(std::string_view name);
    /// Errors: unknown_tag, with the known ones listed.
    [[nodiscard]] Result<TagId> find_tag(std::string_view name) const;
    [[nodiscard]] const Tag& tag(TagId id) const { return tags_[id]; }
    [[nodiscard]] const std::vector<Tag>& tags() const noexcept { return tags_; }
    /// Forgets the tags whose ids are `count` and above, unless a backing has one of them or of those after.
    void forget_tags_from(std::size_t count);
    void set_policy(TagId id, model::TagPolicy policy) { tags_[id].policy = policy; }
    void set_separable(TagId id, bool is_separable) { tags_[id].is_separable = is_separable; }
    void set_live_bytes(TagId id, Bytes bytes) { tags_[id].live_bytes = bytes; }

    /// Adds a backing that is awake; its addresses must be free. The reference is valid until it is removed.
    Backing& add(Backing backing);
    /// Removes the backing that begins at `address` and returns it.
    Backing remove(std::uint64_t address);
    /// The backing whose mapping holds `address`, or null.
    [[nodiscard]] Backing* find(std::uint64_t address) noexcept;
    [[nodiscard]] const Backing* find(std::uint64_t address) const noexcept {
        return const_cast<Ledger*>(this)->find(address);
    }
    [[nodiscard]] Backings& backings() noexcept { return backings_; }
    [[nodiscard]] const Backings& backings() const noexcept { return backings_; }

    /// The one place where a residence changes. A move that may_move() forbids is a bug: it is refused and
    /// logged.
    static bool move(Backing& backing, model::Residence to);

    /// Whether a sleep in host memory leaves the contents of the backing, which is awake, where they are: it
    /// runs from host memory, and every wake puts it there again.
    [[nodiscard]] bool may_sleep_in_place(const Backing& backing) const noexcept {
        return backing.host_backed && tags_[backing.tag].live_bytes != 0;
    }

    /// Host memory that backings have in place of GPU memory: all, or those of one tag.
    [[nodiscard]] Bytes host_backed(std::optional<TagId> tag = std::nullopt) const noexcept;

    /// Returns the part of that host memory which holds contents of sleeping backings.
    [[nodiscard]] Bytes in_place() const noexcept;

    /// Notes that the program itself asked for the sleep of what sleeps under `tags`, or of all for none.
    void note_own_sleep(const std::vector<std::string>& tags) noexcept;

    /// Marks a span as preserved, merging it with those it meets. Must lie within the backing.
    static void preserve(Backing& backing, Span span);
    /// Forgets every mark within `span`.
    static void forget_preserved(Backing& backing, Span span);

    /// Returns the state of all backings together, except those that must stay; or of those under `tags`, but
    /// of all if there are none.
    [[nodiscard]] model::State state(const std::vector<std::string>& tags = {}) const noexcept;
    /// One report for each tag on each device, ordered by tag and device. Backings that have to stay are left
    /// out. `in_files`: how much of a kept range is in files; asked for those that are not damaged.
    [[nodiscard]] std::vector<model::TagReport>
    report(const std::function<Bytes(std::uint64_t range)>& in_files = [](std::uint64_t) {
        return Bytes{0};
    }) const;

private:
    std::vector<Tag> tags_;
    Backings backings_;
    std::uint64_t last_number_ = 0;
};

} // namespace gpu_sleep::ledger
