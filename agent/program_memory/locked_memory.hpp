// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What can be done with the program's memory in several steps, with its mutex held.

#pragma once

#include "driver/memory.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"
#include "program_memory/touch_rule.hpp"
#include "sleep/transactions.hpp"

#include <map>
#include <string>
#include <vector>

namespace gpu_sleep::agent {

/// The program's memory, which is used with the mutex of its ProgramMemory held: with_lock() and
/// try_with_lock() hand it out, and it is not to be kept.
class LockedMemory {
public:
    explicit LockedMemory(const TouchRule& environment) : default_rule_(environment), rule_(environment) {}
    LockedMemory(const LockedMemory&) = delete;
    LockedMemory& operator=(const LockedMemory&) = delete;

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

    /// The backing that holds `address`, which exists, stays on the GPU from now on; the first reason counts.
    void make_stay(driver::DeviceAddress address, const char* reason) noexcept;

    /// Takes out the mapping of the program's own that begins at `address`, which is awake, and returns it
    /// with its handle.
    ledger::Backing remove_mapping(driver::DeviceAddress address);

    /// Those of the engine, guarded, after which reports tell since when all is as it is. A wake, of whatever
    /// tags, also ends a pause.
    [[nodiscard]] Result<void> sleep(const model::SleepRequest& request, const sleep::Control& control,
                                     model::Report& report, sleep::Transactions::Scope scope,
                                     sleep::Transactions::Spill spill);
    [[nodiscard]] Result<sleep::Woken> wake(const model::WakeRequest& request, const sleep::Control& control,
                                            model::Report& report);
    /// Does what `request` says of touches of all that sleeps, whichever request put it to sleep; nothing
    /// where all is awake. Whether it is paused `before` need not say. `is_own`: the program made the
    /// request. Returns whether that changed how touches are met.
    [[nodiscard]] bool adopt_touch_rule(const model::SleepRequest& request, Before before, bool is_own);

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
};

} // namespace gpu_sleep::agent
