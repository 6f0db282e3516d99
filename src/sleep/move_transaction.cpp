// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Prepare: copy. Commit: the copies take over.

#include "sleep/move_transaction.hpp"

#include "sleep/per_device.hpp"

#include <utility>

namespace gpu_sleep::sleep {

MoveTransaction::MoveTransaction(contents::Contents& contents, const SleepPlan& plan,
                                 contents::SaveOptions options)
    : plan_(plan), relocation_(contents, std::move(options)) {
    for (const auto* backing : plan.move) {
        const auto& target = plan.targets.at(backing->tag);
        relocation_.add({backing->device, target.tag}, target.store, backing->address, backing->kept.range);
    }
}

Result<void> MoveTransaction::prepare(const contents::Control& control) {
    GPU_SLEEP_TRY(relocation_.begin());
    contents::ProgressCounter progress(control, relocation_.bytes());
    return relocation_.carry(progress);
}

void MoveTransaction::describe(model::Report& report) const {
    for (const auto* backing : plan_.move)
        device_in(report, backing->device).relocated = relocation_.bytes(backing->device);
}

} // namespace gpu_sleep::sleep
