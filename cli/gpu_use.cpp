// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// By NVML's pids, and by UUIDs.

#include "cli/gpu_use.hpp"

#include "base/process.hpp"
#include "driver/management.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

namespace gpu_sleep::cli {
namespace {

/// Its report, if it has an agent and all of it sleeps.
const model::Report* sleeper(const Outcome& outcome) noexcept {
    const auto* const report = std::get_if<model::Report>(&outcome.answer);
    const bool has_agent = report && !outcome.by_driver;
    const bool sleeps =
        has_agent && (report->state == model::State::asleep || report->state == model::State::damaged);
    return sleeps ? report : nullptr;
}

/// What a process has of all GPUs.
struct Use {
    bool is_listed = false;
    std::optional<Bytes> bytes = Bytes{0}; ///< nothing where NVML does not say how much
};

Use use_of(pid_t pid, const std::vector<driver::Gpu>& gpus) {
    Use use;
    for (const auto& gpu : gpus)
        for (const auto& process : gpu.processes) {
            if (process.pid != pid) continue;
            use.is_listed = true;
            use.bytes =
                use.bytes && process.bytes ? std::optional(*use.bytes + *process.bytes) : std::nullopt;
        }
    return use;
}

/// Whether numbers may differ. Where the driver does not list the GPUs, there may be any number of them.
bool may_be_several() {
    std::error_code none;
    std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", none);
    return none || std::distance(begin(gpus), end(gpus)) > 1;
}

std::map<std::string, int> numbers() {
    std::map<std::string, int> by_uuid;
    if (!may_be_several()) return by_uuid;
    if (const auto gpus = driver::look_at_gpus())
        for (const auto& gpu : *gpus) by_uuid[gpu.uuid] = gpu.index;
    return by_uuid;
}

} // namespace

void note_gpu_use(std::vector<Outcome>& outcomes) {
    if (std::none_of(outcomes.begin(), outcomes.end(), sleeper)) return;
    const auto gpus = driver::look_at_gpus();
    if (!gpus) return;
    const bool has_its_pids = pid_namespace() == k_first_pid_namespace;
    for (auto& outcome : outcomes) {
        const auto* const report = sleeper(outcome);
        if (!report) continue;
        const auto use = use_of(outcome.process.pid, *gpus);
        // Who has a context is listed, if it is known by that pid at all.
        if (use.is_listed || (report->deep && has_its_pids)) outcome.gpu_bytes = use.bytes;
    }
}

model::Report GpuNumbers::in(model::Report report) {
    if (report.devices.empty()) return report;
    if (!by_uuid_) by_uuid_ = numbers();
    std::map<int, int> known;
    for (const auto& device : report.devices)
        if (const auto found = by_uuid_->find(device.uuid); found != by_uuid_->end())
            known[device.device] = found->second;
    const auto is_known = [&](const auto& each) { return known.contains(each.device); };
    const auto are_known = [&](const auto& all) { return std::all_of(all.begin(), all.end(), is_known); };
    if (!are_known(report.devices) || !are_known(report.tags) || !are_known(report.residual)) return report;
    const auto number = [&](auto& all) {
        for (auto& each : all) each.device = known[each.device];
    };
    number(report.devices);
    number(report.tags);
    number(report.residual);
    return report;
}

void GpuNumbers::put_into(std::vector<Outcome>& outcomes) {
    for (auto& outcome : outcomes)
        if (auto* const report = std::get_if<model::Report>(&outcome.answer))
            *report = in(std::move(*report));
}

} // namespace gpu_sleep::cli
