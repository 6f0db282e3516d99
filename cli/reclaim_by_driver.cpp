// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Glance, note, and put to sleep.

#include "cli/reclaim_by_driver.hpp"

#include "cli/idle_history.hpp"
#include "cli/without_agent.hpp"
#include "driver/management.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace gpu_sleep::cli {
namespace {

constexpr Milliseconds k_patience{2'000}; ///< for another pass

double seconds_since_boot() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

bool has_agent(Finder& finder, const Process& process) {
    const auto socket = finder.connect(process);
    return socket || socket.error().code != ErrorCode::no_agent;
}

/// The processes that the pass is about, awake.
std::vector<Outcome> candidates(Finder& finder, const DriverPass& pass) {
    auto all = pass.target ? std::vector<Outcome>() : find_without_agent(finder, pass.user, {});
    if (pass.target)
        if (auto outcome = describe_without_agent(*pass.target)) all.push_back(*std::move(outcome));
    std::erase_if(all, [&](const Outcome& each) {
        const auto* const report = std::get_if<model::Report>(&each.answer);
        return !report || report->state != model::State::awake || has_agent(finder, each.process);
    });
    return all;
}

} // namespace

Result<std::vector<Outcome>> reclaim_by_driver(Finder& finder, const DriverPass& pass,
                                               Interruptions& interruptions) {
    auto history = IdleHistory::open(k_patience);
    if (!history) return std::move(history).error();
    const auto work = driver::look_at_recent_work();
    if (!work) return work.error();
    auto outcomes = candidates(finder, pass);
    for (auto& outcome : outcomes) {
        const auto& process = outcome.process;
        const auto cpu = processor_time_of(process.pid);
        if (!cpu) continue;
        const auto seen = work->last_seen.find(process.pid);
        Glance glance{seconds_since_boot(), *cpu, {}, work->window};
        if (seen != work->last_seen.end()) glance.last_seen = seen->second;
        const auto idle = history->note({process.pid, process.start_time}, glance);
        auto& report = std::get<model::Report>(outcome.answer);
        report.idle_seconds = idle;
        report.operation = model::Operation::sleep;
        outcome.asked = model::Operation::sleep;
        report.dry_run = pass.request.dry_run;
    }
    GPU_SLEEP_TRY(history->save()); // whatever becomes of what follows
    for (auto& outcome : outcomes) {
        auto& report = std::get<model::Report>(outcome.answer);
        const auto idle = report.idle_seconds.value_or(0);
        if (interruptions.has_come()) break;
        if (idle < std::chrono::duration<double>(pass.idle).count()) {
            report.notes = {fmt::format("nothing was seen of it for {} only", format_seconds(idle))};
            for (auto& device : report.devices) device.released = 0; // nothing is
            continue;
        }
        outcome = run_by_driver(outcome.process, pass.request, interruptions);
        if (auto* const done = std::get_if<model::Report>(&outcome.answer)) done->idle_seconds = idle;
    }
    return outcomes;
}

} // namespace gpu_sleep::cli
