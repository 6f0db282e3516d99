// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Taking turns, running a callback, and giving retained memory back.

#include "operations/operation.hpp"

#include "common/interception.hpp"
#include "registry/registry.hpp"
#include "sharing/sharing.hpp"

namespace gpu_sleep::agent::operations {

std::shared_lock<std::shared_mutex> keep_contexts(bool leaves_gate) {
    return leaves_gate ? std::shared_lock(registry::books().contexts.alive)
                       : std::shared_lock<std::shared_mutex>();
}

void Ground::settle_gate() const noexcept {
    if (intercepts() && !memory.settle_gate()) status.note(&ProcessStatus::Notes::touch_trouble, {});
}

Result<void> Operation::take_turn(bool is_sleep) {
    GPU_SLEEP_TRY(ground.turnstile.enter(is_sleep, deadline, [this] {
        ground.giving_back.while_waiting();
        return progress({model::Progress::Phase::waiting, 0, 0});
    }));
    turn.reset(&ground.turnstile);
    for (; !memory.is_ending() && ground.deep.is_locked(); std::this_thread::sleep_for(Milliseconds(200))) {
        if (!progress({model::Progress::Phase::waiting, 0, 0})) return withdrawn();
        if (Clock::now() > deadline)
            return make_error(ErrorCode::timed_out, "it is locked for a checkpoint, until 'cuda-checkpoint "
                                                    "--action unlock' or what has locked it unlocks it");
    }
    return memory.is_ending() ? process_is_ending() : Result<void>();
}

Result<bool> Operation::begin(bool is_sleep) {
    const log::Step step("wait for other operations");
    GPU_SLEEP_TRY(take_turn(is_sleep));
    return ground.deep.look();
}

Result<bool> Operation::wait_ready(Joint& joint, std::uint64_t party) {
    auto told = joint.wait_ready();
    if (!told && sharing::party_has_passed(memory, party)) told = true;
    if (told && *told) memory.shared_ranges().pass();
    return told;
}

model::Report Operation::reported() noexcept {
    memory.with_lock([this](const LockedMemory& locked) {
        ignoring_errors([&] { ground.status.complete(locked, report); });
    });
    report.times.total = seconds_since(start);
    return std::move(report);
}

Result<model::Report> call(const Ground& ground, Callbacks& callbacks, const model::CallRequest& request,
                           const server::ProgressSink& progress) {
    Operation its(ground, progress, request);
    const bool is_deep = GPU_SLEEP_TRY(its.begin(false));
    its.report.changed = callbacks.has_named(request.name);
    if (its.report.changed && !request.dry_run) {
        if (is_deep) return make_error(ErrorCode::refused, "it sleeps deeply: no callback can run");
        its.report.reply = GPU_SLEEP_TRY(callbacks.run_named(request.name, request.argument, its.deadline));
    }
    return its.reported();
}

Result<model::Report> release(const Ground& ground, const model::ReleaseRequest& request,
                              const server::ProgressSink& progress) {
    Operation its(ground, progress, request, model::Operation::sleep);
    const bool is_deep = GPU_SLEEP_TRY(its.begin(false));
    Bytes retained = 0;
    if (!is_deep) {
        const driver::RelaxedCaptureMode relaxed(its.memory.api());
        retained =
            its.memory.with_lock([](const LockedMemory& locked) { return locked.contents().retained(); });
        if (!request.dry_run) its.report.changed = ground.giving_back.all(); // also what is under way
    }
    auto report = its.reported();
    ignoring_errors([&] {
        report.notes.push_back(is_deep ? "it sleeps deeply, and retains nothing"
                                       : fmt::format("{} {} of retained host memory",
                                                     request.dry_run ? "would give back" : "gave back",
                                                     format_bytes(retained)));
    });
    return report;
}

} // namespace gpu_sleep::agent::operations
