// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving what sleeps to another store, step by step. Internal to this module.

#pragma once

#include "contents/progress.hpp"
#include "contents/relocation.hpp"
#include "sleep/plan.hpp"

namespace gpu_sleep::sleep {

/// Prepares (copies) and commits (gives the old copies up) a move. Until commit(), which cannot fail, nothing
/// has changed. No memory of the device is touched, and nobody wakes.
class MoveTransaction {
public:
    /// All outlive it.
    MoveTransaction(contents::Contents& contents, const SleepPlan& plan, contents::SaveOptions options);

    /// Errors: out_of_host_memory, out_of_disk, io_failed, not_permitted, damaged (which leaves all where it
    /// is), cancelled, timed_out.
    [[nodiscard]] Result<void> prepare(const contents::Control& control);
    void commit() noexcept { relocation_.admit(); }

    /// What it needs of `store` at most. Errors: io_failed.
    [[nodiscard]] Result<Bytes> needs(model::Store store) const { return relocation_.needs(store); }
    /// What was moved on each device, or would be.
    void describe(model::Report& report) const;

private:
    const SleepPlan& plan_;
    contents::Relocation relocation_;
};

} // namespace gpu_sleep::sleep
