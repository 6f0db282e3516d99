// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checks of one process: their table, and what its agent's answers mean.

#include "doctor/diagnosis.hpp"

#include "base/text.hpp"

namespace gpu_sleep::doctor {
namespace {

using client::error_of;
using model::DeviceReport;
using model::Report;

const Report* status_of(const ProcessFacts& process) noexcept {
    return std::get_if<Report>(&process.status);
}

const Report* rehearsal_of(const ProcessFacts& process) noexcept {
    return std::get_if<Report>(&process.rehearsal);
}

bool is_asleep(const Report& status) noexcept {
    return status.state == model::State::asleep || status.state == model::State::damaged;
}

/// Whether a sleep is refused unless it is forced.
bool is_for_force(const Report& rehearsal) noexcept {
    return rehearsal.refusal_code == ErrorCode::unseen_library;
}

Findings judge_agent(const MachineFacts&, const ProcessFacts& process) {
    const auto* const failure = error_of(process.status);
    if (process.kernel.is_stopped || (failure && failure->code == ErrorCode::stopped))
        return {bad("the process is stopped, by a signal, a debugger or its control group, and cannot answer",
                    "to resume it: " + process.how_to_go_on, exit_status::timed_out)};
    if (failure) {
        const auto& row = traits(failure->code);
        return {bad(failure->message, std::string(row.advice), row.exit_status)};
    }
    const auto& status = *status_of(process);
    const auto name = status.name.empty() ? std::string() : fmt::format(", and is called {}", status.name);
    return {ok(fmt::format("answers{}; the process is {}", name, model::to_string(status.state)))};
}

Findings judge_c_library(const MachineFacts&, const ProcessFacts& process) {
    const auto& facts = process.kernel.c_library;
    const bool is_too_old = facts.has != 0 && facts.has < facts.agent_needs;
    if (status_of(process) || (!facts.is_musl && !is_too_old)) return {};
    return {bad(is_too_old
                    ? fmt::format("it is glibc 2.{}, and the agent needs 2.{}", facts.has, facts.agent_needs)
                    : "it is musl, and the agent needs the GNU C library",
                "use an image of a newer Debian, Ubuntu or the like", exit_status::no_process)};
}

Findings judge_without_agent(const MachineFacts&, const ProcessFacts& process) {
    if (!process.checkpoint) return {};
    const auto pid = process.process.pid;
    if (!*process.checkpoint)
        return {warn(process.checkpoint->error().message, "the driver cannot put it to sleep")};
    switch (**process.checkpoint) {
    case checkpoint::State::running:
        return {warn("the driver can put all of it to sleep, slowly",
                     fmt::format("gpu-sleep {} --engine driver", pid))};
    case checkpoint::State::locked:
        return {warn("the driver has locked it, and its calls wait", fmt::format("gpu-wake {}", pid))};
    case checkpoint::State::checkpointed:
        return {ok(fmt::format("put to sleep by the driver; gpu-wake {} wakes it", pid))};
    case checkpoint::State::failed: break;
    }
    return {
        bad("the driver failed partway, and its calls never return", "end it", exit_status::failed_asleep)};
}

Findings judge_reach(const MachineFacts&, const ProcessFacts& process) {
    const std::string advice = "stop that work before a sleep, then use gpu-sleep --force";
    Findings findings;
    const auto* const status = status_of(process);
    if (const auto* const rehearsal = rehearsal_of(process)) {
        // The agent knows of calls, too.
        if (is_for_force(*rehearsal)) findings.push_back(bad(rehearsal->refusal, advice));
    } else if (!process.kernel.unseen.empty()) {
        findings.push_back(
            warn("uses the GPU in ways that the agent cannot see: " + model::list_of(process.kernel.unseen),
                 advice));
    }
    if (status && !status->intercepts)
        findings.push_back(warn(
            "the agent sees only the memory that the program allocates through it, and holds back no work",
            "start the program with gpu-run to cover all of it"));
    if (status && findings.empty())
        findings.push_back(ok("the agent sees all calls to the driver, and no library bypasses it"));
    return findings;
}

Findings judge_residual(const MachineFacts&, const ProcessFacts& process) {
    const auto* const status = status_of(process);
    if (!status) return {};
    Bytes managed = 0;
    Bytes others = 0;
    std::string kinds;
    for (const auto& residual : status->residual) {
        if (residual.kind == "managed") {
            managed += residual.bytes;
            continue;
        }
        others += residual.bytes;
        kinds += (kinds.empty() ? "" : ", ") + residual.kind;
    }
    Findings findings;
    if (managed != 0)
        findings.push_back(warn(format_bytes(managed) + " of managed memory stays on the GPU",
                                "the driver cannot checkpoint such a process; avoid managed memory"));
    if (others != 0)
        findings.push_back(
            ok(fmt::format("{} stays on the GPU ({}); gpu-ps says why", format_bytes(others), kinds)));
    return findings;
}

Findings judge_deep(const MachineFacts&, const ProcessFacts& process) {
    const auto* const status = status_of(process);
    if (!status || status->lost) return {};
    if (status->deep) return {ok("it sleeps deeply")};
    if (status->deep_refusal.empty()) return {ok("nothing known prevents a deep sleep")};
    return {warn("it cannot sleep deeply: " + status->deep_refusal,
                 "asleep without --deep, it keeps its contexts and modules on the GPU")};
}

Findings judge_inhibitors(const MachineFacts&, const ProcessFacts& process) {
    const auto* const status = status_of(process);
    if (!status || !status->inhibited) return {};
    const auto limit = status->inhibited_seconds
                           ? " for another " + format_seconds(*status->inhibited_seconds)
                           : std::string();
    return {bad("it refuses sleeps" + limit, fmt::format("gpu-inhibit --release {}, or gpu-sleep "
                                                         "--ignore-inhibitors",
                                                         process.process.pid))};
}

/// How long the contents that are kept take to cross the link. What is `retained` and has not changed does
/// not.
std::string copying_words(const MachineFacts& machine, Bytes kept, Bytes retained) {
    const auto rate = link_rate(machine);
    if (!rate || kept == 0) return {};
    return fmt::format(": {}{} across the link at {:.0f} GB/s ({}), {}", retained == 0 ? "" : "at most ",
                       format_seconds(static_cast<double>(kept) / rate->bytes_per_second),
                       rate->bytes_per_second / 1e9,
                       rate->is_measured ? "measured" : "by its generation and width",
                       retained == 0 ? "and longer the first time" : "less for what has not changed");
}

/// Whether what sleeps has room on its GPUs.
Finding judge_wake(const ProcessFacts& process) {
    const auto pid = process.process.pid;
    if (const auto* const error = error_of(process.wake)) {
        const auto& row = traits(error->code);
        return bad("a wake would fail: " + error->message, std::string(row.advice), row.exit_status_asleep);
    }
    if (const auto* const wake = std::get_if<Report>(&process.wake))
        for (const auto& device : wake->devices)
            if (device.total > 0 && device.released > device.free_before)
                return warn(
                    fmt::format("it sleeps, without room to wake: it needs {} on GPU {}, {} free",
                                format_bytes(device.released), device.device,
                                format_bytes(device.free_before)),
                    fmt::format("gpu-wake {} says who has it; --make-room puts others to sleep", pid));
    return ok(fmt::format("it sleeps; gpu-wake {} wakes it", pid));
}

Findings judge_sleep(const MachineFacts& machine, const ProcessFacts& process) {
    const auto* const status = status_of(process);
    if (!status) return {};
    if (status->lost)
        return {bad("the driver has lost it, and no wake is possible", "gpu-ps says what can be saved of it",
                    exit_status::failed_asleep)};
    if (const auto* const error = error_of(process.rehearsal)) {
        const auto& row = traits(error->code);
        return {bad("a sleep would fail: " + error->message, std::string(row.advice), row.exit_status)};
    }
    if (status->state == model::State::damaged)
        return {bad("some of its contents are damaged", std::string(traits(ErrorCode::damaged).advice),
                    exit_status::damaged)};
    if (is_asleep(*status)) return {judge_wake(process)};
    const auto& rehearsal = *rehearsal_of(process);
    if (!rehearsal.refusal.empty() && !is_for_force(rehearsal))
        return {bad("a sleep would fail: " + rehearsal.refusal, {})};
    const auto& devices = rehearsal.devices;
    const auto released = model::sum_of(devices, &DeviceReport::released);
    const auto kept = model::sum_of(devices, &DeviceReport::kept);
    if (released == 0) return {ok("it has no memory that could sleep yet")};
    auto text = fmt::format("would free {}, keep {} and drop {}", format_bytes(released), format_bytes(kept),
                            format_bytes(model::sum_of(devices, &DeviceReport::dropped)));
    return {ok(text + copying_words(machine, kept, status->retained_bytes))};
}

/// Whether what a sleep keeps has room in host memory, and in the directory that was named.
Findings judge_room(const MachineFacts& machine, const ProcessFacts& process) {
    const auto* const rehearsal = rehearsal_of(process);
    const auto* const status = status_of(process);
    if (!rehearsal || !status || is_asleep(*status)) return {};
    const auto kept = model::sum_of(rehearsal->devices, &DeviceReport::kept);
    const auto needed = kept - std::min(kept, status->retained_bytes); // of which some is there already
    const auto& headroom = process.kernel.headroom;
    auto text = fmt::format("{} needed, {} still available, limited by {}", format_bytes(needed),
                            format_bytes(headroom.bytes), headroom.limited_by);
    Findings findings;
    const bool fits = needed <= headroom.bytes;
    const bool spills = machine.directory && machine.directory->space &&
                        kept <= headroom.bytes + machine.directory->space->bytes;
    if (fits)
        findings.push_back(ok(std::move(text)));
    else if (spills)
        findings.push_back(warn(std::move(text), "gpu-sleep --spill " + machine.directory->path));
    else
        findings.push_back(bad(std::move(text), "raise the limit, or use --store file, --spill or --level 2",
                               exit_status::no_host_memory));
    if (machine.directory && machine.directory->space && machine.directory->space->bytes < kept)
        findings.push_back(
            warn(fmt::format("{} has {} free, less than a sleep keeps ({})", machine.directory->path,
                             format_bytes(machine.directory->space->bytes), format_bytes(kept)),
                 "free disk space, or name another directory"));
    return findings;
}

Findings judge_mappings(const MachineFacts& machine, const ProcessFacts& process) {
    constexpr std::uint64_t k_nearly = 80; // percent
    const auto& used = process.kernel.mappings;
    const auto& limit = machine.kernel.max_mappings;
    if (!used || !limit) return {};
    if (*used * 100 < *limit * k_nearly) return {};
    return {warn(fmt::format("{} of {}", *used, *limit),
                 "a sleep needs some more: sysctl vm.max_map_count=262144, as root")};
}

constexpr std::array k_process_checks = {
    ProcessCheck{"agent", "agent", judge_agent},
    ProcessCheck{"c_library", "C library", judge_c_library},
    ProcessCheck{"driver_engine", "without agent", judge_without_agent},
    ProcessCheck{"reach", "reach", judge_reach},
    ProcessCheck{"inhibitors", "inhibitors", judge_inhibitors},
    ProcessCheck{"sleep", "sleep", judge_sleep},
    ProcessCheck{"room", "room", judge_room},
    ProcessCheck{"residual", "what stays", judge_residual},
    ProcessCheck{"deep", "deep sleep", judge_deep},
    ProcessCheck{"mappings", "mappings", judge_mappings},
};

} // namespace

std::span<const ProcessCheck> process_checks() noexcept {
    return k_process_checks;
}

} // namespace gpu_sleep::doctor
