// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a request to its operation; and when others sleep for it.

#include "operations/operations.hpp"

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::operations {

/// Returns its name as a step, for the log.
static const char* name_of(const server::Operation& operation) noexcept {
    const bool is_rehearsal = model::terms_in(operation)->dry_run;
    if (std::holds_alternative<model::WakeRequest>(operation))
        return is_rehearsal ? "rehearse a wake" : "wake";
    if (model::sleep_in(operation)) return is_rehearsal ? "rehearse a sleep" : "sleep";
    return "request";
}

Result<model::Report> Operations::run(const server::Operation& operation, const server::Asking& asking) {
    std::optional<log::Step> step;
    if (!asking.is_tried) step.emplace(name_of(operation));
    if (const auto* const release = std::get_if<model::ReleaseRequest>(&operation))
        return operations::release(ground_, *release, asking.progress);
    if (const auto* const live = std::get_if<model::LiveRequest>(&operation))
        return move_out(ground_, live_, inhibitors, *live, asking);
    if (const auto* const call = std::get_if<model::CallRequest>(&operation))
        return operations::call(ground_, callbacks, *call, asking.progress);
    if (const auto* const sleep = model::sleep_in(operation))
        return operations::sleep(ground_, sleeps_, *sleep, std::get_if<model::IdleSleepRequest>(&operation),
                                 asking);
    const auto& wake = std::get<model::WakeRequest>(operation);
    if (!wake.make_room) return operations::wake(ground_, wakes_, wake, asking);
    const auto wake_by = [&](const auto& its) {
        return operations::wake(ground_, wakes_, its,
                                {asking.progress, k_alone, asking.asker, asking.since, asking.is_tried});
    };
    if (wake.dry_run) return room.rehearse(wake_by, wake);
    const bool is_switch = asking.asker == server::Asker::command && wake.min_awake.count() == 0;
    auto woken = room.wake(wake_by, wake, asking.is_tried, is_switch);
    if (woken && is_switch)
        status.note(&ProcessStatus::Notes::woken,
                    Clock::now()); // also of one that was awake: it is to stay so
    return woken;
}

RoomMaking::Holders Operations::holders(model::WakeRequest request) {
    const server::ProgressSink nobody = [](const model::Progress&) { return true; };
    request.dry_run = true;
    const auto rehearsed = wake(ground_, wakes_, request, {nobody, k_alone});
    return rehearsed ? room.holders(needs_of_wake(*rehearsed)) : RoomMaking::Holders();
}

/// Where an allocation of the program has failed: who has the GPU memory, and the command that makes room.
static void say_who_has_memory(ProgramMemory& memory, KnownDevices& devices, RoomMaking& room) {
    const auto lack = memory.shortage().take();
    if (!lack || !memory.may_call_driver()) return;
    const auto total = driver::device_memory(memory.api(), lack->device);
    if (!total || lack->bytes >= *total) return; // no sleep makes room for so much
    const auto gpu = devices.find(lack->device).uuid;
    if (gpu.empty()) return;
    const auto holders = room.holders({{gpu, lack->bytes}}).words;
    if (holders.empty()) return;
    log::warning("an allocation of {} found too little memory on GPU {}: {}; make room with gpu-reclaim "
                 "--need {}MiB --gpu {}, or start the program with gpu-run --need SIZE",
                 format_bytes(lack->bytes), lack->device, holders, (lack->bytes + k_mib - 1) / k_mib, gpu);
    memory.shortage().set_said();
}

bool Operations::tidy() {
    say_who_has_memory(memory_, devices_, room);
    if (memory_.is_left() && memory_.asleep_bytes() == 0 && deep.is_locked())
        memory_.tidy_within(Milliseconds(1'000));
    return giving_back_.some();
}

} // namespace gpu_sleep::agent::operations
