// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// By NVML's pids.

#include "cli/gpu_use.hpp"

#include "base/process.hpp"
#include "driver/management.hpp"

#include <algorithm>
#include <optional>

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

} // namespace gpu_sleep::cli
