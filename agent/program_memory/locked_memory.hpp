// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's memory with its mutex held, for work of several steps. It also decides what a touch meets
// while something sleeps, from the environment, requests and the program; the gate acts by that.

#pragma once

#include "base/units.hpp"
#include "driver/memory.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"
#include "sleep/transactions.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::agent {

/// How touches are met while something sleeps.
struct TouchRule {
    model::OnTouch on_touch = model::OnTouch::wait;
    std::optional<Milliseconds> limit;   ///< for the waking that a touch asks for
    std::optional<model::GateMode> gate; ///< as an operator wants it: the last request to say so, or gpu-run
    bool is_whole = false;               ///< the last sleep was of all tags

    friend bool operator==(const TouchRule&, const TouchRule&) = default;
};

/// How a process is that a request puts to sleep, and who does that.
struct Before {
    bool is_held = false;     ///< something slept, or it was paused: threads may wait under the present rule
    bool is_paused = false;   ///< it is
    bool is_for_idle = false; ///< it sleeps for being idle
};

/// The rule after `request` was carried out. Fields that it leaves unset keep the value of `now` if threads
/// may wait under that, and else have that of `environment`. Who takes the memory of a process for being
/// idle, or makes room, does not end a pause by that: touches are met as before.
[[nodiscard]] TouchRule touch_rule_after(const TouchRule& now, const TouchRule& environment,
                                         const model::SleepRequest& request, Before before);

/// Which work the gate lets pass while memory of `ledger` sleeps. An operator is heard first. Else other work
/// passes where the program has parted all that sleeps from the rest, by putting it to sleep itself or by
/// declaring its tag separable; unless all was to sleep, and all does.
[[nodiscard]] model::GateMode gate_mode(const TouchRule& rule, const ledger::Ledger& ledger) noexcept;

/// The program's memory, which is used with the mutex of its ProgramMemory held: with_lock() and
/// try_with_lock() hand it out, and it is not to be kept.
class LockedMemory {
public:
    explicit LockedMemory(const TouchRule& environment) : default_rule_(environment), rule_(environment) {}
    LockedMemory& operator=(LockedMemory&&) = delete;

    [[nodiscard]] ledger::Ledger& ledger() noexcept { return ledger_; }
    [[nodiscard]] const ledger::Ledger& ledger() const noexcept { return ledger_; }
    /// CUDA can be used: engine() and contents() exist from now on.
    void start(sleep::Transactions& engine) noexcept { engine_ = &engine; }
    [[nodiscard]] sleep::Transactions& engine() const noexcept { return *engine_; }
    [[nodiscard]] contents::Contents& contents() const noexcept { return engine_->contents(); }
    /// How touches are met: of the sleep under way or last done.
    [[nodiscard]] const TouchRule& touch_rule() const noexcept { return rule_; }

    /// Whether all of the program's work waits until a wake, whatever sleeps. Returns whether that is new.
    bool set_paused(bool is_paused) noexcept;
    [[nodiscard]] bool is_paused() const noexcept { return is_paused_; }
    /// Of what is under `tags`; see Ledger::state().
    [[nodiscard]] model::State state(const std::vector<std::string>& tags = {}) const;

    /// The backing that holds `address`, which exists, stays on the GPU from now on; the first reason counts,
    /// unless it is `in_common` with others, and may end.
    void make_stay(driver::DeviceAddress address, const char* reason, bool is_in_common = false) noexcept;

    /// Takes out the mapping of the program's own that begins at `address`, which is awake, and returns it
    /// with its handle.
    ledger::Backing remove_mapping(driver::DeviceAddress address);

    /// Those of the engine, guarded, after which reports tell since when all is as it is. A wake, of whatever
    /// tags, also ends a pause.
    [[nodiscard]] Result<void> sleep(const model::SleepRequest& request, const sleep::Control& control,
                                     model::Report& report, sleep::Transactions::Scope scope,
                                     sleep::Transactions::Spill spill);
    [[nodiscard]] Result<sleep::Woken> wake(const model::WakeRequest& request, const sleep::Control& control,
                                            model::Report& report, const sleep::Fetch& fetch,
                                            bool imports_alone);
    /// Does what `request` says of touches of all that sleeps, whichever request put it to sleep; nothing
    /// where all is awake. Whether it is paused `before` need not say. `is_own`: the program made the
    /// request. Returns whether that changed how touches are met.
    [[nodiscard]] bool adopt_touch_rule(const model::SleepRequest& request, Before before, bool is_own);

    /// The tags that went to sleep so that others can have the driver lock this process, until that is over.
    [[nodiscard]] std::vector<std::string>& lock_tags() noexcept { return lock_tags_; }

    /// Host memory to prepare for each device, in whole pieces: for what a sleep of level 1 would keep, and
    /// is not retained.
    [[nodiscard]] std::map<int, Bytes> worth_preparing() const;
    /// Writes the state, the sizes of what is kept, and the tags. What takes memory comes last.
    void describe(model::Report& report) const;

private:
    ledger::Ledger ledger_;
    sleep::Transactions* engine_ = nullptr;
    Clock::time_point state_since_ = Clock::now();
    const TouchRule default_rule_; ///< of the environment
    TouchRule rule_;
    bool is_paused_ = false;
    std::vector<std::string> lock_tags_;
};

} // namespace gpu_sleep::agent
