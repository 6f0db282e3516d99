// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waits for its turn, and has the callback run.

#include "operations/call.hpp"

#include "operations/turn.hpp"

namespace gpu_sleep::agent::operations {

Result<model::Report> call(Parts& parts, const model::CallRequest& request,
                           const server::ProgressSink& progress) {
    const auto start = Clock::now();
    const auto deadline = start + request.timeout;
    const auto turn = Turn::take(parts, false, deadline, progress);
    if (!turn) return turn.error();
    if (parts.memory.is_ending()) return process_is_ending();
    const auto is_deep = parts.deep.look();
    if (!is_deep) return is_deep.error();
    model::Report report;
    report.dry_run = request.dry_run;
    report.changed = parts.callbacks.has_named(request.name);
    if (report.changed && !request.dry_run) {
        if (*is_deep) return make_error(ErrorCode::refused, "it sleeps deeply, and can call nothing");
        auto reply = parts.callbacks.run_named(request.name, request.argument, deadline);
        if (!reply) return std::move(reply).error();
        report.reply = *std::move(reply);
    }
    parts.memory.with_lock(
        [&](const LockedMemory& locked) { ignoring_errors([&] { parts.status.complete(locked, report); }); });
    report.times.total = seconds_since(start);
    return report;
}

} // namespace gpu_sleep::agent::operations
