// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Types that hooks and this module share: the answer of a call, records that are taken out while a context
// ends, and calls that this build does not know. Includes nothing else of the agent.

#pragma once

#include <cuda.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

/// All functions of this module are thread-safe, and what intercepted calls call lets nothing cross: what
/// fails inside returns a status of the driver. None needs the agent to run; without it everything is left to
/// the driver.

namespace gpu_sleep::agent::intercepted {

/// The status to return, or nothing: the call is the driver's.
using Answer = std::optional<CUresult>;
/// Why an allocation stays with the driver: the least size, or a rule, says so.
struct ResidualCause {
    const char* reason = nullptr; ///< null for any other: nobody counts it
    CUcontext context = nullptr;
    int device = 0;
    CUmemoryPool pool = nullptr; ///< of which it is; null: plain memory
};

/// The status of a call that needs sleeping memory and cannot wait for it.
inline constexpr CUresult k_sleeps = CUDA_ERROR_SYSTEM_NOT_READY;

/// The status of an intercepted call that the gate refuses: as the driver's own when the process ends.
[[nodiscard]] CUresult refused() noexcept;

/// Puts back what was taken out of the books because what it belongs to may go; empty: there was nothing.
using PutBack = std::function<void()>;

/// Records that were taken out because their context may end.
struct PendingRemoval {
    std::function<void()> gone; ///< called when the context has gone: frees it
    PutBack stays;              ///< called when the context stays
};

/// Moves the entries that are wanted out of a map, which takes no memory.
template <class Map, class Wanted>
[[nodiscard]] Map move_out(Map& from, const Wanted& wanted) {
    Map taken;
    for (auto next = from.begin(); next != from.end();) {
        const auto here = next++;
        if (wanted(*here)) taken.insert(from.extract(here));
    }
    return taken;
}

/// Notes a call, inside the gate: who closes it, and looks then, sees the note. Takes no memory, and keeps
/// `name`, which lives as long as the process. Thread-safe.
void note_unknown_call(const char* name) noexcept;

/// The names that were noted, each once. Each may have given the GPU work or taken memory unseen.
/// Thread-safe.
[[nodiscard]] std::vector<std::string> called_unknown();

} // namespace gpu_sleep::agent::intercepted
