// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep from the request to the answer.

#pragma once

#include "base/result.hpp"
#include "model/model.hpp"
#include "operations/gate_settler.hpp"
#include "operations/parts.hpp"
#include "server/line.hpp"

#include <optional>

namespace gpu_sleep::agent::operations {

/// One sleep, run once, on the operations thread.
class SleepOperation {
public:
    /// `is_own`: the program asked for it.
    SleepOperation(Parts& parts, const model::SleepRequest& request, const server::ProgressSink& progress,
                   bool is_own);

    /// Errors: those of Turnstile::enter(), Quiesce::run() and Engine::sleep(): all is awake that was, but
    /// for what could not be mapped again; no_process (it is ending).
    [[nodiscard]] Result<model::Report> run();

private:
    /// What may help after a shortage; each is tried once, in this order, and then the sleep again.
    struct Remedy {
        ErrorCode shortage;
        /// False: there was nothing to do.
        bool (SleepOperation::*apply)();
    };
    static const Remedy k_remedies[];
    /// What the last wake left to be given back, was freed since, or is retained of what does not sleep now,
    /// may be what is missing.
    bool give_unneeded_back();
    /// The same of all that is retained.
    bool give_memory_back();
    bool give_files_back();
    /// If the request allows it.
    bool turn_to_files();

    /// All of a request that puts nothing to sleep.
    [[nodiscard]] model::Report release_retained();
    /// Gets the program quiet, and moves contents as often as remedies allow.
    [[nodiscard]] Result<void> move_contents();
    [[nodiscard]] Result<void> attempt() noexcept;
    /// Where nothing is moved, this is the point of no return.
    [[nodiscard]] Result<void> pass_without_moving();
    /// Does what the request says of all that sleeps, whichever request put it to sleep.
    void apply_to_sleepers();

    Parts& parts_;
    const model::SleepRequest& request_;
    const server::ProgressSink& progress_;
    const bool is_own_;
    const Clock::time_point start_ = Clock::now();
    const Clock::time_point deadline_;
    std::optional<model::SleepRequest> spilled_; ///< the request as it is carried out with files instead
    model::Report report_;
    Callbacks::Jobs owed_; ///< if the sleep does not come
    Bytes asleep_before_ = 0;
};

} // namespace gpu_sleep::agent::operations
