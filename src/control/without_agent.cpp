// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// NVML says who has what, our own notes who has nothing because it was checkpointed, and the driver how each
// stands.

#include "control/without_agent.hpp"

#include "control/checkpoint_record.hpp"
#include "driver/checkpoint.hpp"
#include "driver/management.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

namespace gpu_sleep::control {
namespace {

using driver::CheckpointState;

/// What both libraries say, loaded once for a listing. A process is looked up in it by its pid.
class Driver {
public:
    Driver() {
        auto checkpoint = driver::Checkpoint::load();
        if (checkpoint) checkpoint_ = *checkpoint;
        if (!checkpoint_) return;
        if (auto gpus = driver::look_at_gpus()) gpus_ = *std::move(gpus);
    }

    /// Those that have memory of a GPU, by NVML's numbers.
    [[nodiscard]] std::set<pid_t> users() const {
        std::set<pid_t> pids;
        for (const auto& gpu : gpus_)
            for (const auto& process : gpu.processes) pids.insert(process.pid);
        return pids;
    }

    [[nodiscard]] std::optional<Outcome> describe(const Process& process) const {
        if (!checkpoint_) return {};
        if (ProcFs().is_stopped(process)) // the driver would wait for it
            return Outcome{process, make_error(ErrorCode::stopped, "it has no agent, and is stopped"),
                           model::Operation::status, false, true};
        const auto state = checkpoint_->state(process.pid);
        if (!state) return {};
        model::Report report;
        report.pid = process.inner_pid;
        const bool runs = *state == CheckpointState::running;
        report.state = runs ? model::State::awake : model::State::asleep;
        report.notes.push_back(note(process, *state));
        for (const auto& gpu : gpus_)
            for (const auto& user : gpu.processes)
                if (user.pid == process.pid) {
                    report.devices.push_back(
                        {gpu.index, gpu.name, user.bytes.value_or(0), 0, 0, gpu.free, gpu.free, gpu.total});
                    report.devices.back().uuid = gpu.uuid;
                }
        return Outcome{process, std::move(report), model::Operation::status, false, true};
    }

private:
    static std::string note(const Process& process, CheckpointState state) {
        const auto pid = process.pid;
        switch (state) {
        case CheckpointState::running:
            return fmt::format("no agent; gpu-sleep {} --engine driver puts it to sleep as a whole", pid);
        case CheckpointState::locked:
            return fmt::format("locked by the driver: its calls wait, and its memory is where it was; "
                               "gpu-wake {} unlocks it",
                               pid);
        case CheckpointState::checkpointed:
            if (is_recorded_as_lost(process))
                return "lost: a restore found too little GPU memory, and the driver allows no second one; "
                       "what it had on the GPU cannot be saved; end it";
            return fmt::format(
                "checkpointed by the driver: all of it is in its host memory; gpu-wake {} restores it", pid);
        case CheckpointState::failed:
            return "lost: the driver could not checkpoint or restore it, and its calls never return; end it";
        }
        return {};
    }

    std::optional<driver::Checkpoint> checkpoint_;
    std::vector<driver::Gpu> gpus_;
};

} // namespace

std::optional<Outcome> describe_without_agent(const Process& process) {
    return Driver().describe(process);
}

std::vector<Outcome> find_without_agent(const Finder& finder, std::optional<uid_t> user,
                                        const std::vector<Outcome>& known) {
    const Driver driver;
    auto pids = driver.users();
    pids.merge(recorded_processes());
    pids.erase(::getpid());
    for (const auto& outcome : known) pids.erase(outcome.process.pid);
    std::vector<Outcome> found;
    const auto own = ::geteuid();
    for (const auto pid : pids) {
        auto process = finder.proc().read(pid);
        if (!process || (own != 0 && process->uid != own) || (user && process->uid != *user)) continue;
        identify(finder.proc(), *process);
        // In a container NVML may mean another process by this number: the driver knows those that are meant.
        if (auto outcome = driver.describe(*process)) found.push_back(*std::move(outcome));
    }
    return found;
}

} // namespace gpu_sleep::control
