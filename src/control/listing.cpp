// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// NVML says who has what, our own notes who has nothing because it was checkpointed, and the driver how each
// stands.

#include "control/listing.hpp"

#include "control/checkpoint_record.hpp"
#include "driver/checkpoint.hpp"
#include "driver/management.hpp"

#include <iterator>

namespace gpu_sleep::control {
namespace {

/// The answers of both libraries, loaded once for a listing. A process is looked up in it by its pid.
class Driver {
public:
    Driver() {
        auto checkpoint = driver::Checkpoint::load();
        if (!checkpoint) return;
        checkpoint_ = *checkpoint;
        if (auto gpus = driver::look_at_gpus()) gpus_ = *std::move(gpus);
    }

    /// Returns the processes that have GPU memory, by NVML's pids.
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
        const bool runs = *state == checkpoint::State::running;
        report.state = runs ? model::State::awake : model::State::asleep;
        const auto recorded = *state == checkpoint::State::checkpointed ? recorded_of(process) : Recorded();
        for (const auto& [gpu, bytes] : recorded.needs) report.host_bytes += bytes;
        report.notes.push_back(note(process.pid, *state, recorded.is_lost));
        report.lost = recorded.is_lost || *state == checkpoint::State::failed;
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
    static std::string note(pid_t pid, checkpoint::State state, bool is_lost) {
        switch (state) {
        case checkpoint::State::running:
            return fmt::format("no agent; gpu-sleep {} --engine driver puts it to sleep as a whole", pid);
        case checkpoint::State::locked:
            return fmt::format("locked by the driver: its calls wait, and its memory has not moved; "
                               "gpu-wake {} unlocks it",
                               pid);
        case checkpoint::State::checkpointed:
            if (is_lost)
                return "lost: the driver restored it with too little GPU memory, and cannot try again; its "
                       "GPU memory cannot be saved; end the process";
            return fmt::format(
                "checkpointed by the driver: all of it is in its host memory; gpu-wake {} restores it", pid);
        case checkpoint::State::failed:
            return "lost: the driver could not checkpoint or restore it, and its calls never return; end it";
        }
        return {};
    }

    std::optional<driver::Checkpoint> checkpoint_;
    std::vector<driver::Gpu> gpus_;
};

} // namespace

std::vector<Outcome> find_without_agent(const Finder& finder, std::optional<uid_t> user,
                                        const std::set<pid_t>& known) {
    const Driver driver;
    auto pids = driver.users();
    pids.merge(recorded_processes());
    pids.erase(::getpid());
    for (const auto pid : known) pids.erase(pid);
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

Result<std::vector<Outcome>> list(const std::string& target, std::optional<uid_t> user,
                                  Milliseconds timeout) {
    Finder finder;
    auto targets =
        target.empty() ? find_all(finder, user) : find_targets(finder, target, {user, true, timeout});
    if (!targets && targets.error().code == ErrorCode::no_agent) {
        const auto process = find_process_without_agent(finder, target, user);
        auto outcome = process ? Driver().describe(*process) : std::nullopt;
        if (outcome) return std::vector{*std::move(outcome)};
    }
    if (!targets) return std::move(targets).error();
    auto outcomes = ask_each(finder, *std::move(targets), model::StatusRequest(), timeout);
    for (auto& outcome : outcomes) {
        use_published(finder, outcome);
        auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (report && report->version != GPU_SLEEP_VERSION)
            report->notes.push_back(fmt::format("its agent is version {}, these commands are {}",
                                                report->version, GPU_SLEEP_VERSION));
    }
    if (!target.empty()) return outcomes;
    drop_ended(outcomes);
    std::set<pid_t> known;
    for (const auto& outcome : outcomes) known.insert(outcome.process.pid);
    auto others = find_without_agent(finder, user, known);
    std::move(others.begin(), others.end(), std::back_inserter(outcomes));
    return outcomes;
}

Result<std::vector<Outcome>> rehearse(const std::string& target, std::optional<uid_t> user,
                                      model::IdleSleepRequest request, Milliseconds patience) {
    request.sleep.dry_run = true;
    request.sleep.timeout = patience / 2; // to wait for another operation, or for one who holds sleeps back
    Finder finder;
    const auto ask = [&](const protocol::Request& asked) -> Result<std::vector<Outcome>> {
        auto targets = GPU_SLEEP_TRY(find_targets(finder, target, {.user = user}));
        return ask_each(finder, std::move(targets), asked, patience);
    };
    const auto now = GPU_SLEEP_TRY(ask(request));
    request.sleep.ignore_inhibitors = true;
    const auto unprevented = GPU_SLEEP_TRY(ask(request.sleep));
    std::vector<Outcome> outcomes;
    for (const auto& outcome : unprevented) {
        const auto verdict = std::ranges::find_if(
            now, [&](const Outcome& other) { return other.process.pid == outcome.process.pid; });
        if (verdict == now.end()) continue;
        const auto* const said = std::get_if<model::Report>(&verdict->answer);
        auto* const report =
            std::get_if<model::Report>(&outcomes.emplace_back(said ? outcome : *verdict).answer);
        if (!report) continue;
        report->refusal = client::refusal_in(verdict->answer);
        report->refusal_code = said->refusal_code;
        if (report->refusal.empty()) continue;
        std::erase(report->notes, report->refusal);
        report->notes.insert(report->notes.begin(), report->refusal);
    }
    return outcomes;
}

} // namespace gpu_sleep::control
