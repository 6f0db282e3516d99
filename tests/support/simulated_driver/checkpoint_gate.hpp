// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a checkpoint waits for in the process that it is about, and what waits there for its end.

#pragma once

#include "support/not_copied.hpp"
#include "support/simulated_driver/entry_points.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <cstdint>

namespace gpu_sleep::sim {

/// A driver call of this process under way. It begins once no other process holds this one's calls; those
/// that only ask pass while it is locked and not yet checkpointed. Calls may nest.
class CallUnderWay : test::NotCopied {
public:
    explicit CallUnderWay(Entry entry) noexcept;
    ~CallUnderWay();
    /// True once for each restore.
    [[nodiscard]] bool is_first_after_restore() const noexcept;
};

/// Counts what streams have to do, for locks wait until it is done.
void note_work_submitted() noexcept;
void note_work_done() noexcept;

/// Counts managed allocations, which no checkpoint takes: `more` is 1 or -1.
void note_managed(int more) noexcept;
/// The same for what a checkpoint takes and no restore brings back.
void note_standing(Standing kind, int more) noexcept;
/// Registered memory, which a restore does not find again if the process cannot reach it at the checkpoint.
void note_registered(std::uint64_t begin, std::uint64_t bytes) noexcept;
void note_unregistered(std::uint64_t begin) noexcept;

} // namespace gpu_sleep::sim
