// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What can be done with the program's memory in several steps, with its mutex held.

#pragma once

#include "driver/memory.hpp"
#include "ledger/ledger.hpp"
#include "model/model.hpp"
#include "sleep/engine.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::agent {

class ProgramMemory;

/// The program's memory while its mutex is held: only ProgramMemory::with_lock() and try_with_lock() make
/// one, and it is not to be kept.
class LockedMemory {
public:
    LockedMemory(const LockedMemory&) = delete;
    LockedMemory& operator=(const LockedMemory&) = delete;

    // Ranges.
    /// The backing that holds `address`, or null.
    [[nodiscard]] const ledger::Backing* find(driver::DeviceAddress address) const noexcept;
    [[nodiscard]] const ledger::Ledger::Backings& backings() const noexcept;
    [[nodiscard]] bool is_asleep(driver::DeviceAddress address) const noexcept;
    /// The backing that holds `address`, which exists, stays on the GPU from now on; the first reason counts.
    void make_stay(driver::DeviceAddress address, const char* reason) noexcept;

    // Mappings that the program made itself.
    struct OwnMapping {
        driver::DeviceAddress address = 0;
        Bytes bytes = 0;
        std::string_view tag;
        int device = 0;
        driver::DeviceMask access = 0;
        driver::PhysicalMemory::Handle handle = 0;
    };
    /// From now on it can sleep, and its handle may change.
    void add_mapping(const OwnMapping& mapping);
    /// Takes out what begins at `address`, which is awake. Returns its handle.
    driver::PhysicalMemory::Handle remove_mapping(driver::DeviceAddress address);
    void set_mapping_access(driver::DeviceAddress address, driver::DeviceMask access) noexcept;

    // Operations: see sleep::Engine, plan_sleep() and X.
    [[nodiscard]] Result<sleep::SleepPlan> plan_sleep(const model::SleepRequest& request);
    [[nodiscard]] Result<void> sleep(const model::SleepRequest& request, const sleep::Control& control,
                                     model::Report& report, sleep::Engine::Scope scope,
                                     sleep::Engine::Spill spill);
    [[nodiscard]] Result<sleep::Woken> wake(const model::WakeRequest& request, const sleep::Control& control,
                                            model::Report& report);
    [[nodiscard]] Result<std::vector<model::WakeRequest>> parts_of(const model::WakeRequest& request) const;
    [[nodiscard]] Result<void> check_free_memory(const model::WakeRequest& request);
    void adjust_asleep(const model::SleepRequest& request, model::Report& report);
    /// Does what `request` says of touches of all that sleeps, whichever request put it to sleep; nothing
    /// where all is awake. `is_own`: the program made it. Returns whether that changed how touches are met.
    [[nodiscard]] bool adopt_touch_rule(const model::SleepRequest& request, bool adds_to_sleep, bool is_own);

    // Contents that are retained of what is awake.
    [[nodiscard]] Bytes retained() const noexcept { return contents().retained(); }
    /// Forgets them, the oldest first, until `most` bytes or less are left. Returns how much that was.
    Bytes trim_retained(Bytes most) const noexcept { return contents().trim_retained(most); }

    /// Forgets those that are of no use to that sleep.
    void forget_retained_beside(const model::SleepRequest& request) {
        engine().forget_retained_beside(request);
    }

    /// Host memory to prepare for each device, in whole pieces: for what a sleep of level 1 would keep, and
    /// is not retained.
    [[nodiscard]] std::map<int, Bytes> worth_preparing() const;
    /// See contents::Contents.
    [[nodiscard]] Bytes prepared(int device) const noexcept { return contents().prepared(device); }
    void limit_prepared(int device, Bytes most) const { contents().limit_prepared(device, most); }

    /// Kept contents whose host memory is still to be pinned, for the operations thread; null if there are
    /// none.
    [[nodiscard]] contents::Batch* find_unpinned() const noexcept { return contents().find_unpinned(); }

    /// Unpins all host memory that holds contents, or is to. The caller keeps contexts from ending.
    [[nodiscard]] bool unpin() const noexcept { return contents().unpin(); }

    // Reports.
    [[nodiscard]] model::State state() const noexcept;
    /// Writes the state, the sizes of what is kept, and the tags. What takes memory comes last.
    void describe(model::Report& report) const;
    /// Files of contents that nothing needs any more, and that could not be removed.
    [[nodiscard]] std::vector<std::filesystem::path> files_out_of_reach() const;

private:
    friend class ProgramMemory;
    friend class RetiredContents;
    explicit LockedMemory(ProgramMemory& memory) noexcept : memory_(memory) {}
    [[nodiscard]] ledger::Ledger& ledger() const noexcept;
    [[nodiscard]] sleep::Engine& engine() const noexcept;
    [[nodiscard]] contents::Contents& contents() const noexcept { return engine().contents(); }

    ProgramMemory& memory_;
};

} // namespace gpu_sleep::agent
