// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking NVML, and agents in its place; by NVML's pids, and by UUIDs.

#include "control/gpus.hpp"

#include "base/text.hpp"
#include "client/room.hpp"
#include "control/gpu_moves.hpp"

#include <fmt/ranges.h>
#include <iterator>
#include <sstream>

namespace gpu_sleep::control {
namespace {

/// Its report, if it has an agent and all of it sleeps.
const model::Report* sleeper(const Outcome& outcome) noexcept {
    const auto* const report = std::get_if<model::Report>(&outcome.answer);
    const bool has_agent = report && !outcome.by_driver;
    const bool sleeps =
        has_agent && (report->state == model::State::asleep || report->state == model::State::damaged);
    return sleeps ? report : nullptr;
}

/// How much memory of all GPUs a process uses.
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

constexpr Milliseconds k_agent_patience{2'000};

const model::Report* report_of(const Outcome& outcome) {
    return std::get_if<model::Report>(&outcome.answer);
}

/// Returns the GPUs that agents report, without their memory.
std::vector<driver::Gpu> gpus_of(const std::vector<Outcome>& processes) {
    std::vector<driver::Gpu> all;
    for (const auto& process : processes) {
        const auto* const report = report_of(process);
        if (!report) continue;
        for (const auto& device : report->devices)
            if (!device.uuid.empty() && !find_gpu(all, device.uuid))
                all.push_back({device.device, device.uuid, device.name, 0, 0, false, {}});
    }
    return all;
}

/// Which directory holds the socket of `process`; nothing where that is not known.
std::optional<std::pair<dev_t, ino_t>> place_of_socket(Finder& finder, const Process& process) {
    const auto socket = finder.socket_of(process);
    struct stat status = {};
    if (!socket || ::fstat(socket->directory.get(), &status) != 0) return std::nullopt;
    return std::pair(status.st_dev, status.st_ino);
}

Error nobody_knows() {
    return make_error(ErrorCode::no_driver, "no GPU is known: NVML is missing, and no agent answers");
}

bool is_meant(const driver::Gpu& gpu, const std::string& text) {
    if (const auto index = parse_number<int>(text)) return gpu.index == *index;
    return gpu.uuid.starts_with(text);
}

/// Requests that change nothing: an agent answers one of them with the figures of its GPUs, whether its
/// process sleeps or not.
std::array<protocol::Request, 2> rehearsals() {
    model::SleepRequest sleep;
    sleep.dry_run = true;
    sleep.ignore_inhibitors = true;
    model::WakeRequest wake;
    wake.dry_run = true;
    return {sleep, wake};
}

std::string only_its_user(uid_t uid) {
    return uid == 0 ? "only root can put it to sleep"
                    : fmt::format("only {} and root can put it to sleep", user_name(uid));
}

} // namespace

const model::DeviceReport* device_of(const Answer& answer, const std::string& uuid) noexcept {
    const auto* const report = std::get_if<model::Report>(&answer);
    if (!report) return nullptr;
    const auto found = std::ranges::find(report->devices, uuid, &model::DeviceReport::uuid);
    return found == report->devices.end() ? nullptr : &*found;
}

void note_gpu_use(std::vector<Outcome>& outcomes) {
    if (std::ranges::none_of(outcomes, sleeper)) return;
    const auto gpus = driver::look_at_gpus();
    if (!gpus) return;
    const bool has_its_pids = pid_namespace() == k_first_pid_namespace;
    for (auto& outcome : outcomes) {
        const auto* const report = sleeper(outcome);
        if (!report) continue;
        const auto use = use_of(outcome.process.pid, *gpus);
        // A process with a context is listed, if it is known by that pid at all.
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
    const auto are_known = [&](const auto& all) { return std::ranges::all_of(all, is_known); };
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

Gpus::Gpus(Finder& finder, const std::vector<Outcome>& processes) : finder_(finder), processes_(processes) {
    auto looked = driver::look_at_gpus();
    has_management_ = static_cast<bool>(looked);
    all_ = looked ? *std::move(looked) : gpus_of(processes);
}

Result<driver::Gpu> Gpus::choose(const std::string& text) const {
    if (all_.empty()) return nobody_knows();
    std::vector<driver::Gpu> meant;
    std::copy_if(all_.begin(), all_.end(), std::back_inserter(meant),
                 [&](const auto& gpu) { return text.empty() || is_meant(gpu, text); });
    if (meant.size() == 1) return meant.front();
    std::vector<std::string> names;
    for (const auto& gpu : all_) names.push_back(fmt::format("{} ({})", gpu.index, gpu.uuid));
    return make_error(ErrorCode::invalid_argument, "{}; this machine has: {}",
                      text.empty()    ? std::string("there are several GPUs: choose one")
                      : meant.empty() ? fmt::format("there is no GPU {}", text)
                                      : fmt::format("'{}' names several GPUs", text),
                      fmt::join(names, ", "));
}

Result<driver::Gpu> Gpus::look(const std::string& uuid) const {
    if (!has_management_) return ask_agent(uuid);
    auto gpus = GPU_SLEEP_TRY(driver::look_at_gpus());
    const auto* const gpu = find_gpu(gpus, uuid);
    if (!gpu) return make_error(ErrorCode::no_driver, "GPU {} has gone", uuid);
    return *gpu;
}

Result<driver::Gpu> Gpus::ask_agent(const std::string& uuid) const {
    auto gpu = *find_gpu(all_, uuid);
    const auto requests = rehearsals();
    for (const auto& process : processes_) {
        if (!device_of(process.answer, uuid)) continue;
        std::vector<client::Question> questions;
        for (const auto& request : requests)
            if (auto socket = finder_.connect(process.process))
                questions.push_back({*std::move(socket), &request, {.answer = k_agent_patience}});
        for (const auto& answer : client::ask_all(std::move(questions))) {
            const auto* const device = device_of(answer, uuid);
            if (!device || device->total == 0) continue;
            gpu.total = device->total;
            gpu.free = device->free_before;
            return gpu;
        }
    }
    return make_error(ErrorCode::no_driver, "the free memory of GPU {} is not known: NVML is missing", uuid);
}

Result<std::vector<driver::Gpu>> visible_of(const std::vector<driver::Gpu>& all, bool are_numbered,
                                            const char* names, const char* order) {
    if (all.empty()) return nobody_knows();
    if (!names) return all;
    std::vector<driver::Gpu> seen;
    bool is_by_number = false;
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
        std::erase(name, ' ');
        const bool is_number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
        const auto named = [&](const driver::Gpu& gpu) { return is_meant(gpu, name); };
        const bool is_one = (is_number || name.starts_with("GPU-")) && std::ranges::count_if(all, named) == 1;
        if (!is_one) break; // nor does the driver look at what follows
        is_by_number = is_by_number || is_number;
        seen.push_back(*std::ranges::find_if(all, named));
    }
    if (seen.empty())
        return make_error(ErrorCode::invalid_argument,
                          "CUDA_VISIBLE_DEVICES={} names no whole GPU that is known here", names);
    if (is_by_number && !are_numbered)
        return make_error(ErrorCode::invalid_argument,
                          "NVML, which numbers the GPUs, is missing: give UUIDs in CUDA_VISIBLE_DEVICES");
    const bool are_alike =
        std::ranges::all_of(all, [&](const auto& gpu) { return gpu.name == all.front().name; });
    if (is_by_number && !are_alike && std::string_view(order ? order : "") != "PCI_BUS_ID")
        return make_error(ErrorCode::invalid_argument,
                          "the GPUs are of several kinds, and CUDA numbers the fastest first: set "
                          "CUDA_DEVICE_ORDER=PCI_BUS_ID, or give UUIDs in CUDA_VISIBLE_DEVICES");
    return seen;
}

std::string why_not_asked(Finder& finder, const Process& asker, const Process& other) {
    if (other.uid != asker.uid) {
        const auto owner = user_name(other.uid);
        return asker.uid == 0
                   ? fmt::format("it belongs to {}; root's agents ask only root's processes", owner)
                   : fmt::format("it belongs to {}: {}", owner, only_its_user(other.uid));
    }
    const auto place = place_of_socket(finder, asker);
    const auto its_place = place_of_socket(finder, other);
    if (!place || !its_place) return "it may be out of reach: its agent's socket was not found";
    if (*place == *its_place) return {};
    return "it sees another /tmp, so it cannot be asked; start both with the same /tmp";
}

std::vector<std::string> holders_without_agent(const Finder& finder, const driver::Gpu& gpu,
                                               const std::vector<Outcome>& known, uid_t own) {
    std::vector<std::string> lines;
    for (const auto& holder : gpu.processes) {
        const auto is_it = [&](const Outcome& each) { return each.process.pid == holder.pid; };
        const auto outcome = std::ranges::find_if(known, is_it);
        if (outcome != known.end() && report_of(*outcome)) continue;
        const auto bytes = holder.bytes ? format_bytes(*holder.bytes) : "memory";
        auto process = finder.proc().read(holder.pid);
        if (!process) {
            lines.push_back(fmt::format("{} has {}: it has no agent that answers", holder.pid, bytes));
            continue;
        }
        identify(finder.proc(), *process);
        const auto subject = title(*process);
        if (own != 0 && process->uid != own) {
            lines.push_back(fmt::format("{} of {} has {}: {}", subject, user_name(process->uid), bytes,
                                        only_its_user(process->uid)));
            continue;
        }
        const bool has_agent =
            outcome != known.end() || finder.proc().find_thread(holder.pid, k_control_thread);
        const auto why =
            finder.proc().is_stopped(*process) ? fmt::format("it is stopped (see gpu-doctor {})", holder.pid)
            : has_agent                        ? std::string("its agent does not answer")
                        : fmt::format("it has no agent (gpu-sleep {} --engine driver)", holder.pid);
        lines.push_back(fmt::format("{} has {}: {}", subject, bytes, why));
    }
    return lines;
}

bool Neighbours::look() {
    constexpr Milliseconds k_just{1'000};
    if (looked_ && Clock::now() < *looked_ + k_just) return true;
    finder = Finder();
    auto asked = ask_all(finder, {}, k_agent_patience);
    if (!asked) return false;
    outcomes = *std::move(asked);
    auto seen = driver::look_at_gpus();
    gpus = seen ? *std::move(seen) : std::vector<driver::Gpu>();
    looked_ = Clock::now();
    return true;
}

Holders holders_beside(Neighbours& neighbours, const Process& process, bool others_alone,
                       const std::vector<GpuPair>& moves, client::BytesByGpu gpus) {
    if (!neighbours.look()) return {};
    auto& finder = neighbours.finder;
    std::vector<client::Holder> holders;
    std::vector<client::Candidate> candidates;
    const auto asker = finder.proc().read(process.pid);
    Holders found;
    for (const auto& outcome : neighbours.outcomes) {
        const auto* const report = report_of(outcome);
        if (!report) continue;
        if (outcome.process.pid == process.pid)
            for (const auto& device : report->devices) gpus[place_of(device.uuid, moves)] = 0;
        else {
            auto candidate = client::candidate_of(*report, model::WakeRequest().min_awake);
            if (others_alone) candidate.against = asker ? why_not_asked(finder, *asker, outcome.process) : "";
            if (others_alone && candidate.against.empty()) continue;
            holders.push_back({title(outcome.process), *report, {}});
            candidates.push_back(std::move(candidate));
        }
    }
    found.can_sleep = std::ranges::any_of(candidates, [&](const auto& candidate) {
        return candidate.against.empty() && std::ranges::any_of(candidate.frees, [&](const auto& each) {
                   return gpus.contains(each.first);
               });
    });
    auto lines = client::describe(holders, candidates, gpus);
    for (const auto& [uuid, bytes] : gpus)
        if (const auto* const gpu = find_gpu(neighbours.gpus, uuid)) {
            auto others = holders_without_agent(finder, *gpu, neighbours.outcomes, ::geteuid());
            std::move(others.begin(), others.end(), std::back_inserter(lines));
        }
    found.text = fmt::format("{}", fmt::join(lines, "; "));
    return found;
}

} // namespace gpu_sleep::control
