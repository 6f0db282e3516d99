// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running a sleep or a wake as a transaction: after any failure everything is as it was before.

#pragma once

#include "contents/contents.hpp"
#include "contents/progress.hpp"
#include "driver/api.hpp"
#include "driver/context.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"
#include "sleep/plan.hpp"

namespace gpu_sleep::sleep {

using contents::Control;
using contents::telling_of_call;

/// The tags that a wake brought back, and those that it left asleep.
struct Woken {
    std::vector<std::string> tags;
    std::vector<std::string> dropped_tags; ///< of those, the ones that lost contents
    /// Why some tags stay asleep. Errors: damaged, or of reading their files.
    std::optional<Error> left;
};

/// Runs transactions over the ledger's backings. The caller holds the mutex that guards the ledger, has
/// drained the device before a sleep, and lets no work at the memory until the call returns. One at a time.
class Transactions {
public:
    using Options = contents::HostUse;
    /// A context of the program's own on a device, or null. It is only asked for free memory. Whoever calls
    /// the engine keeps the program from ending it meanwhile; see driver::PrimaryContext.
    using ContextOf = std::function<CUcontext(int device)>;

    Transactions(
        const driver::Api& api, ledger::Ledger& ledger, Options options,
        ContextOf own_context_of = [](int) { return nullptr; })
        : api_(api), ledger_(ledger), contents_(api, options), own_context_of_(std::move(own_context_of)) {}

    /// What sleep() would do. Errors: those of sleep::plan_sleep().
    [[nodiscard]] Result<SleepPlan> plan_sleep(const model::SleepRequest& request);

    /// What a sleep is done to.
    enum class Scope {
        all,
        /// Only what sleeps already, and moves to another store. Devices are drained for what is taken out of
        /// its own memory.
        sleepers,
        copies, ///< of that, only what is kept already, for which the driver is not needed
        deep    ///< the driver is out of reach: only kept copies are moved or given up
    };
    /// Where contents go that the first of model::k_stores has no room for now: the other places, in this
    /// order. None: it must have room.
    using Spill = std::span<const model::Store>;
    /// Fills in `report` what the transaction did on each device, and its times. Nothing to do: not changed.
    /// Tries once: to use files when host memory is short (SleepRequest::spill) is the caller's. Where the
    /// request allows that, a sleep that host memory has no room for fails before anything is copied.
    /// Errors: those of plan_sleep(); out_of_host_memory, out_of_disk, io_failed, not_permitted (the
    /// directory), damaged (what was to move), driver_failed, context_lost, cancelled, timed_out: all is as
    /// it was before.
    [[nodiscard]] Result<void> sleep(const model::SleepRequest& request, const Control& control,
                                     model::Report& report, Scope scope = Scope::all, Spill spill = {});

    /// Tries once: waiting for GPU memory (WakeRequest::wait) is the caller's,
    /// who can let the mutex go meanwhile. A tag whose contents are damaged, or whose file cannot be read,
    /// stays asleep; the others wake. Errors: those of plan_wake(); out_of_device_memory, out_of_host_memory
    /// (to run from there), driver_failed, context_lost, cancelled, timed_out: all that was asleep still is,
    /// with its contents. Those of `fetch`, too, which brings imports; without it, they sleep on.
    [[nodiscard]] Result<Woken> wake(const model::WakeRequest& request, const Control& control,
                                     model::Report& report, const Fetch& fetch = {},
                                     bool imports_alone = false);

    /// Whether the devices have room for that now; asks, and changes nothing. Errors: those of plan_wake();
    /// out_of_device_memory, driver_failed, context_lost.
    [[nodiscard]] Result<void> check_free_memory(const model::WakeRequest& request);

    /// Has nothing that sleeps keep memory that failed calls left there, and no backing host memory, which
    /// the driver may not bring back. Errors: driver_failed: some is left, or runs or sleeps there.
    [[nodiscard]] Result<void> leave_host_memory();

    /// What wake() would do. Errors: unknown_tag.
    [[nodiscard]] Result<WakePlan> plan_wake(const model::WakeRequest& request);

    /// After a sleep that may have found some asleep already: has the files of that kept too, if `request`
    /// asks for it, and notes in `report` what lies in another store than it asks for, and stays there.
    /// Errors: io_failed (files are not kept).
    [[nodiscard]] Result<void> adjust_asleep(const model::SleepRequest& request, model::Report& report);

    /// Forgets what is retained and is of no use to that sleep. Returns how much that was.
    Bytes forget_retained_beside(const model::SleepRequest& request);

    /// Counts the host memory that backs what is awake, and `more` that is to, among what the user's
    /// processes hold together; what is `made` to back some is not yet the ledger's. Errors:
    /// out_of_host_memory (that is too much, or the host has no room for `more`): as before.
    [[nodiscard]] Result<void> count_host_backed(Bytes more = 0, Bytes made = 0);

    [[nodiscard]] contents::Contents& contents() noexcept { return contents_; }

private:
    [[nodiscard]] IsElsewhere is_elsewhere() const {
        return std::bind_front(&contents::Contents::is_elsewhere, &contents_);
    }
    /// Says what a sleep would do, and what it needs.
    [[nodiscard]] Result<void> rehearse(const model::SleepRequest& request, const SleepPlan& plan,
                                        model::Report& report);

    /// Of a device, as one of its contexts says: the primary one if that is active, else one of the program's
    /// own. Nothing where there is none: to ask in the primary one would make it. Errors: driver_failed,
    /// context_lost.
    [[nodiscard]] Result<std::optional<driver::MemoryInfo>> memory_of(int device) const;
    /// Adds the memory of each device in `report`, if it can be asked: as it is, and by `estimate` as it
    /// would be. Errors: those of memory_of().
    [[nodiscard]] Result<void> add_memory(Bytes (*estimate)(Bytes free, Bytes moved),
                                          model::Report& report) const;
    /// Errors: out_of_device_memory (`plan` takes more than is free), those of memory_of().
    [[nodiscard]] Result<void> check_free_memory(const WakePlan& plan) const;

    /// Counts the host memory that `plan` makes; a dry run only looks for it. Where that cannot be had, and
    /// what ran there need not stay there, has it wake on the GPU if all of it fits, with a note. Errors:
    /// out_of_host_memory.
    [[nodiscard]] Result<void> count_host_backed_by(WakePlan& plan, const model::WakeRequest& request,
                                                    model::Report& report);

    /// What `plan` brought back, but for the tags that are `spoiled`.
    [[nodiscard]] Woken woken_but(const Spoiled& spoiled, const WakePlan& plan) const;

    const driver::Api& api_;
    ledger::Ledger& ledger_;
    contents::Contents contents_;
    store::HostShare host_backed_; ///< contents of what is awake, or sleeps in place
    const ContextOf own_context_of_;
};

/// Waits for others that go together with this one (Control::wait_for_others), for whom the deadline is not
/// heeded any more, and asks a last time whether to go on. From here on neither a withdrawal nor the deadline
/// is heeded, and the asker has been told so. All is ready, and can still be undone; where memory is moved,
/// its mutex is held. Returns whether others were told, too: then it must go on. Errors: cancelled,
/// timed_out.
[[nodiscard]] Result<bool> pass_point_of_no_return(const contents::Control& control);

} // namespace gpu_sleep::sleep
