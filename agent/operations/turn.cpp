// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Taking turns, running a callback, and giving retained memory back.

#include "operations/turn.hpp"

#include "base/log.hpp"
#include "common/interception.hpp"
#include "driver/context.hpp"
#include "intercepted/own_contexts.hpp"
#include "operations/giving_back.hpp"

namespace gpu_sleep::agent::operations {

Result<Turn> take_turn(Parts& parts, bool is_sleep, Clock::time_point deadline,
                       const server::ProgressSink& progress) {
    const log::Step step("wait for other operations");
    GPU_SLEEP_TRY(parts.turnstile.enter(is_sleep, deadline, [&] {
        give_way_while_waiting(parts);
        return progress({model::Progress::Phase::waiting, 0, 0});
    }));
    return Turn(&parts.turnstile);
}

Result<Begun> begin_operation(Parts& parts, bool is_sleep, Clock::time_point deadline,
                              const server::ProgressSink& progress) {
    auto turn = take_turn(parts, is_sleep, deadline, progress);
    if (!turn) return std::move(turn).error();
    if (parts.memory.is_ending()) return process_is_ending();
    const auto is_deep = parts.deep.look();
    if (!is_deep) return is_deep.error();
    return Begun{*std::move(turn), *is_deep};
}

void complete_report(Parts& parts, model::Report& report, Clock::time_point start) noexcept {
    parts.memory.with_lock(
        [&](const LockedMemory& locked) { ignoring_errors([&] { parts.status.complete(locked, report); }); });
    report.times.total = seconds_since(start);
}

std::shared_lock<std::shared_mutex> keep_contexts(bool leaves_gate) {
    return leaves_gate ? std::shared_lock(intercepted::contexts_mutex())
                       : std::shared_lock<std::shared_mutex>();
}

Error process_is_ending() {
    return make_error(ErrorCode::no_process, "the process is ending");
}

void settle_gate(ProgramMemory& memory, ProcessStatus& status) noexcept {
    if (intercepts() && !memory.settle_gate()) status.set_touch_trouble({});
}

Result<model::Report> call(Parts& parts, const model::CallRequest& request,
                           const server::ProgressSink& progress) {
    const auto start = Clock::now();
    const auto deadline = start + request.timeout;
    const auto begun = begin_operation(parts, false, deadline, progress);
    if (!begun) return begun.error();
    model::Report report;
    report.dry_run = request.dry_run;
    report.changed = parts.callbacks.has_named(request.name);
    if (report.changed && !request.dry_run) {
        if (begun->is_deep) return make_error(ErrorCode::refused, "it sleeps deeply: no callback can run");
        auto reply = parts.callbacks.run_named(request.name, request.argument, deadline);
        if (!reply) return std::move(reply).error();
        report.reply = *std::move(reply);
    }
    complete_report(parts, report, start);
    return report;
}

Result<model::Report> release(Parts& parts, const model::ReleaseRequest& request,
                              const server::ProgressSink& progress) {
    const auto start = Clock::now();
    const auto begun = begin_operation(parts, false, start + request.timeout, progress);
    if (!begun) return begun.error();
    model::Report report;
    report.operation = model::Operation::sleep;
    report.dry_run = request.dry_run;
    Bytes retained = 0;
    if (!begun->is_deep) {
        const driver::RelaxedCaptureMode relaxed(parts.memory.api());
        retained =
            parts.memory.with_lock([](const LockedMemory& locked) { return locked.contents().retained(); });
        if (!request.dry_run) report.changed = give_back_all(parts); // also what is being given back already
    }
    complete_report(parts, report, start);
    ignoring_errors([&] {
        report.notes.push_back(begun->is_deep ? "it sleeps deeply, and retains nothing"
                                              : fmt::format("{} {} of retained host memory",
                                                            request.dry_run ? "would give back" : "gave back",
                                                            format_bytes(retained)));
    });
    return report;
}

} // namespace gpu_sleep::agent::operations
