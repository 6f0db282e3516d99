// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Operations as lists of steps, and what runs them.

#pragma once

#include "base/guard.hpp"
#include "base/log.hpp"
#include "operations/joint.hpp"

namespace gpu_sleep::agent::operations {

/// A step of the operation `Of`, in the order of the list that it stands in.
template <class Of>
struct Step {
    const char* name; ///< as log::Step has it
    /// Does it, or finds that there is nothing to do.
    Result<void> (Of::*run)();
    /// Takes back what it may have done, where it or a later one has failed.
    void (Of::*undo)() noexcept = nullptr;
    /// It may wait: what the asker is told before, who may withdraw then.
    std::optional<model::Progress::Phase> waits = std::nullopt;
    bool changes = false; ///< something that a dry run leaves as it is
};

/// Runs `steps` one after another, each guarded. Where one fails, it and those before it are undone, the last
/// first. A dry run ends before the first that changes anything. `is_noted`: they are noted as log::Step; if
/// not, they are from the first on that changes anything.
template <class Of>
Result<void> run_steps(Of& of, std::span<const Step<Of>> steps, bool is_dry, bool is_noted) {
    for (std::size_t i = 0; i < steps.size() && !(is_dry && steps[i].changes); ++i) {
        is_noted |= steps[i].changes;
        auto done = guarded([&]() -> Result<void> {
            std::optional<log::Step> noted;
            if (is_noted) noted.emplace(steps[i].name);
            if (steps[i].waits && !of.progress({*steps[i].waits, 0, 0})) return withdrawn();
            return (of.*steps[i].run)();
        });
        if (done) continue;
        for (auto undone = i + 1; undone-- > 0;)
            if (const auto undo = steps[undone].undo) (of.*undo)();
        return done;
    }
    return {};
}

} // namespace gpu_sleep::agent::operations
