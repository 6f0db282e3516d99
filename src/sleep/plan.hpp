// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Planning: what a request does to each backing. Reads the ledger and changes nothing.

#pragma once

#include "contents/save.hpp"
#include "driver/memory.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"

namespace gpu_sleep::sleep {

/// What a sleep request does to a backing.
enum class Action : std::uint8_t {
    leave,   ///< nothing: it is as asked, or not asked for
    keep,    ///< keep all contents, release the memory
    drop,    ///< keep preserved spans only, release the memory
    give_up, ///< asleep with contents: give them up
    move,    ///< asleep with contents: bring them to the store that was asked for, without waking
    stay,    ///< keep all contents in the memory that has them, which is the host's
    take_out ///< asleep with its contents in its own memory: keep them in a store, without waking
};

/// A request's wishes for a backing, and what is known of that.
struct Circumstances {
    bool keep = false;          ///< the request means to keep its tag
    bool has_preserved = false; ///< parts of it are kept whatever the request means
    bool is_mendable = false;   ///< damaged, and it may have been put right since
    bool is_elsewhere = false;  ///< the request names a store, and some of what is kept lies in another
    bool may_stay = false;      ///< awake, and a sleep need not copy it: ledger::Ledger::may_sleep_in_place()
    bool is_in_place = false;   ///< asleep, and its own memory holds the contents
};

/// What a sleep does to a backing that is `residence`. This table and wake_action_for() are the whole meaning
/// of requests in states. A wake that waits for GPU memory
/// is no state: what it is to wake is kept or dropped, every request does to that what it does without the
/// wake, and each try of the wake is a new wake.
///
///     residence   keep       drop
///     device      keep       drop
///     kept        leave      give_up, unless it has preserved spans: then leave
///     dropped     leave      leave
///     damaged     leave      give_up, unless it has preserved spans and may be mended: then leave
///
/// A pause leaves all as it is. What is to be kept stays in its own memory where it may. Where the table says
/// leave, what is kept (preserved spans of what was dropped, too) moves if it is elsewhere, or is taken out
/// of its own memory; but what is damaged stays where it can be put right.
[[nodiscard]] Action action_for(model::Residence residence, const Circumstances& it) noexcept;

/// What a wake does to a backing: kept and dropped ones wake, awake ones stay. Damaged ones keep all of their
/// tag asleep, but are tried again where they may have been put right meanwhile.
enum class WakeAction : std::uint8_t { leave, restore, refuse };
[[nodiscard]] WakeAction wake_action_for(model::Residence residence, bool is_mendable) noexcept;

/// Whether `request` keeps contents under `policy` of the tag `name`.
[[nodiscard]] bool keeps_contents(const model::SleepRequest& request, std::string_view name,
                                  model::TagPolicy policy);

/// Whether the contents of a tag with this policy may be lost, and nobody misses them: the program has said
/// that it fills the tag again, or that no sleep is to keep it.
[[nodiscard]] bool may_be_lost(model::TagPolicy policy) noexcept;

/// What `request` says of the store of the tag `name`, if it names that.
[[nodiscard]] std::optional<model::Store> store_named_for(const model::Placement& placement,
                                                          std::string_view name);
/// Where `request` wants contents of the tag that sleep already; nothing: where they are.
[[nodiscard]] std::optional<model::Store> store_asked_for(const model::Placement& placement,
                                                          std::string_view name);
/// Where `request` puts what it keeps of the tag.
[[nodiscard]] model::Store store_for(const model::Placement& placement, std::string_view name);

/// Neighbouring backings that one driver call unmaps, or grants access to.
struct Run {
    std::vector<ledger::Backing*> backings; ///< by address, without holes; one tag, one access mask
    [[nodiscard]] driver::AddressSpan span() const noexcept {
        return {backings.front()->address, backings.back()->end() - backings.front()->address};
    }
};

/// Groups backings, given by address, into the longest runs.
[[nodiscard]] std::vector<Run> make_runs(const std::vector<ledger::Backing*>& backings);

struct DeviceSleepPlan {
    std::vector<ledger::Backing*> keep; ///< by address, as all below
    std::vector<ledger::Backing*> drop;
    std::vector<ledger::Backing*> stay;
    std::vector<ledger::Backing*> take_out; ///< of what sleeps already
    /// Whether anything is awake that is to sleep.
    [[nodiscard]] bool puts_to_sleep() const noexcept {
        return !keep.empty() || !drop.empty() || !stay.empty();
    }
};

struct SleepPlan {
    std::map<int, DeviceSleepPlan> devices;
    /// Where what is kept of each tag goes, and the tag's name.
    struct Target {
        std::string tag;
        model::Store store = model::Store::host;
    };
    std::map<ledger::TagId, Target> targets;
    std::vector<ledger::Backing*> give_up;
    std::vector<ledger::Backing*> move;    ///< to the store of their tag's target
    std::vector<std::string> tags;         ///< that have something to do, but for moves
    std::set<std::string> awake_tags;      ///< of those, the ones with something awake
    std::vector<std::string> dropped_tags; ///< of those, the ones that lose contents
    std::vector<std::string>
        without_refill; ///< of those, the ones that nobody declared refillable or discardable
    std::vector<std::string>
        still_kept; ///< asleep with all contents, which were to be dropped but for preserved spans
    /// Whether anything goes to sleep, or to a deeper one: not if it only moves, or is taken out.
    [[nodiscard]] bool changes_sleep() const noexcept;
    /// Whether any is taken out of its own memory.
    [[nodiscard]] bool takes_out() const noexcept;
    /// Has it do nothing but move, and take out.
    void move_only() noexcept;
    /// Has it do what needs no GPU: the driver has all that is awake, and keeps it. Errors: driver_failed (it
    /// drops memory of which no copy is kept here, or takes some out, unless `may_stay`).
    [[nodiscard]] Result<void> leave_gpu(bool may_stay);
    [[nodiscard]] bool is_empty() const noexcept {
        return devices.empty() && give_up.empty() && move.empty();
    }
};

/// A backing of which something is to be kept, and what its ledger entry will say.
struct Drafted {
    ledger::Backing* backing = nullptr;
    ledger::Kept kept;
};

/// Puts all that `plan` keeps into `save`: in its store, or all in `store`. A dry run and the sleep do this.
[[nodiscard]] std::vector<Drafted> draft(const SleepPlan& plan, contents::Save& save,
                                         std::optional<model::Store> store = std::nullopt);

/// Notes in `report` how much of what `plan` keeps stays in its own memory.
void note_in_place(const SleepPlan& plan, model::Report& report);

/// Tags that stay asleep although they were to wake, each with the reason.
using Spoiled = std::map<ledger::TagId, Error>;

/// Gives memory of other processes the driver's handles, once the process's own is there. Empty: that stays
/// asleep. Of the process's own, spoiled tags will not wake; some of the others' may be left without a
/// handle.
using Fetch = std::function<Result<void>(std::span<ledger::Backing* const>, const Spoiled&)>;

struct WakePlan {
    std::map<int, std::vector<ledger::Backing*>> devices;
    std::vector<ledger::Backing*> imports;    ///< of other processes, once all else is there
    std::set<const ledger::Backing*> to_host; ///< of those, the ones that get host memory again
    std::vector<ledger::TagId> tags;
    std::vector<ledger::TagId> dropped_tags; ///< of those, the ones that lost contents
    Spoiled spoiled;                         ///< not among `tags`
    [[nodiscard]] bool is_empty() const noexcept { return devices.empty() && imports.empty(); }
    /// The memory that it makes on the device.
    [[nodiscard]] Bytes needs(int device) const;
    /// The host memory that it makes.
    [[nodiscard]] Bytes needs_of_host() const noexcept;
};

/// Whether some of a kept range lies in another store. What does not all lie in host memory, and was found
/// damaged, may have been put right since.
using IsElsewhere = std::function<bool(contents::Number, model::Store)>;

/// Leaves alone the backings that must stay. Errors: unknown_tag, invalid_argument (a tag both kept and
/// discarded; no directory where files are wanted, or none that can be opened from anywhere), no_refill.
[[nodiscard]] Result<SleepPlan> plan_sleep(ledger::Ledger& ledger, const model::SleepRequest& request,
                                           const IsElsewhere& is_elsewhere);

/// Errors: unknown_tag.
[[nodiscard]] Result<WakePlan> plan_wake(ledger::Ledger& ledger, const model::WakeRequest& request,
                                         const IsElsewhere& is_elsewhere);

/// Adds to the devices of `report` what `plan` takes on each, brings back and sets to zero.
void describe_plan(const WakePlan& plan, model::Report& report);

} // namespace gpu_sleep::sleep
