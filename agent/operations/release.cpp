// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waits for its turn, gives retained memory back, and says how much that was.

#include "operations/release.hpp"

#include "base/guard.hpp"
#include "driver/context.hpp"
#include "operations/giving_back.hpp"
#include "operations/turn.hpp"

namespace gpu_sleep::agent::operations {

Result<model::Report> release(Parts& parts, const model::ReleaseRequest& request,
                              const server::ProgressSink& progress) {
    const auto start = Clock::now();
    const auto turn = Turn::take(parts, false, start + request.timeout, progress);
    if (!turn) return turn.error();
    if (parts.memory.is_ending()) return process_is_ending();
    const auto is_deep = parts.deep.look();
    if (!is_deep) return is_deep.error();
    model::Report report;
    report.operation = model::Operation::sleep;
    report.dry_run = request.dry_run;
    Bytes retained = 0;
    if (!*is_deep) {
        const driver::RelaxedCaptureMode relaxed(parts.memory.api());
        retained =
            parts.memory.with_lock([](const LockedMemory& locked) { return locked.contents().retained(); });
        if (!request.dry_run) report.changed = give_back_all(parts); // also what is being given back already
    }
    parts.memory.with_lock([&](const LockedMemory& locked) {
        ignoring_errors([&] {
            parts.status.complete(locked, report);
            report.notes.push_back(*is_deep ? "it sleeps deeply, and retains nothing"
                                            : fmt::format("{} {} of retained host memory",
                                                          request.dry_run ? "would give back" : "gave back",
                                                          format_bytes(retained)));
        });
    });
    report.times.total = seconds_since(start);
    return report;
}

} // namespace gpu_sleep::agent::operations
