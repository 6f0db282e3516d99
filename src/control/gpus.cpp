// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking NVML, and agents in its place; by NVML's pids, and by UUIDs. Completing moves.

#include "control/gpus.hpp"

#include "base/text.hpp"
#include "client/room.hpp"

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

/// Returns the GPUs that agents report, without their memory.
std::vector<driver::Gpu> gpus_of(const std::vector<Outcome>& processes) {
    std::vector<driver::Gpu> all;
    for (const auto& process : processes) {
        const auto* const report = std::get_if<model::Report>(&process.answer);
        if (!report) continue;
        for (const auto& device : report->devices)
            if (!device.uuid.empty() && !find_gpu(all, device.uuid))
                all.push_back({device.device, device.uuid, device.name, 0, 0, false, {}});
    }
    return all;
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

// ---- Completing moves to a list in which every GPU has one place

/// The place of the GPU of this number or uuid in `gpus`. Errors: invalid_argument.
Result<std::size_t> place_in(const std::vector<driver::Gpu>& gpus, const std::string& word) {
    const auto is_meant = [&](const driver::Gpu& gpu) {
        return model::is_number(word) ? std::to_string(gpu.index) == word : gpu.uuid == word;
    };
    const auto found = std::ranges::find_if(gpus, is_meant);
    if (found != gpus.end()) return static_cast<std::size_t>(found - gpus.begin());
    std::string all;
    for (const auto& gpu : gpus)
        all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", gpu.index, gpu.uuid);
    return make_error(ErrorCode::invalid_argument, "there is no GPU {}; this machine has: {}", word, all);
}

/// For each GPU, which takes its place; nothing where nobody has said.
using Places = std::vector<std::optional<std::size_t>>;

/// Errors: invalid_argument.
Result<Places> places_of(const std::vector<GpuPair>& moves, const std::vector<driver::Gpu>& gpus) {
    Places places(gpus.size());
    std::vector<bool> is_taken(gpus.size());
    for (const auto& move : moves) {
        const auto from = GPU_SLEEP_TRY(place_in(gpus, move.from));
        const auto to = GPU_SLEEP_TRY(place_in(gpus, move.to));
        if (places[from] || is_taken[to])
            return make_error(ErrorCode::invalid_argument, "GPU {} is named twice on the same side",
                              gpus[places[from] ? from : to].index);
        const auto& source = gpus[from];
        const auto& target = gpus[to];
        if (source.name != target.name || source.total != target.total)
            return make_error(ErrorCode::invalid_argument,
                              "the driver restores on a GPU of the same kind: GPU {} is {} with {}, GPU {} "
                              "is {} with {}",
                              source.index, source.name, format_bytes(source.total), target.index,
                              target.name, format_bytes(target.total));
        places[from] = to;
        is_taken[to] = true;
    }
    return places;
}

/// Gives each GPU that has no place the one that is left: its own, or the one that the chain of moves which
/// ends there has begun at.
void complete(Places& places) {
    for (std::size_t gpu = 0; gpu < places.size(); ++gpu) {
        if (places[gpu]) continue;
        std::size_t place = gpu;
        const auto comes_from = [&](std::size_t to) { return std::ranges::find(places, std::optional(to)); };
        for (auto from = comes_from(place); from != places.end(); from = comes_from(place))
            place = static_cast<std::size_t>(from - places.begin());
        places[gpu] = place;
    }
}

/// Whether what was typed goes with what the process has. Errors: invalid_argument.
Result<void> check_needs(const Places& typed, const Places& places, const std::vector<driver::Gpu>& gpus,
                         const client::BytesByGpu& needs) {
    if (needs.empty()) return {};
    const auto is_needed = [&](std::size_t gpu) { return needs.contains(gpus[gpu].uuid); };
    for (std::size_t i = 0; i < gpus.size(); ++i)
        if (typed[i] && !is_needed(i))
            return make_error(ErrorCode::invalid_argument, "it had nothing on GPU {}", gpus[i].index);
    for (std::size_t i = 0; i < gpus.size(); ++i)
        if (!typed[i] && is_needed(i) && places[i] != i)
            return make_error(ErrorCode::invalid_argument,
                              "it also had memory on GPU {}: say where that goes, too", gpus[i].index);
    return {};
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

const driver::Gpu* find_gpu(const std::vector<driver::Gpu>& gpus, const std::string& uuid) noexcept {
    const auto found = std::ranges::find(gpus, uuid, &driver::Gpu::uuid);
    return found == gpus.end() ? nullptr : &*found;
}

Result<GpuPair> parse_gpu_move(const std::string& text) {
    const auto equals = text.find('=');
    const bool is_whole = equals != std::string::npos && equals != 0 && equals + 1 != text.size() &&
                          text.find('=', equals + 1) == std::string::npos;
    if (is_whole) return GpuPair{text.substr(0, equals), text.substr(equals + 1)};
    return make_error(ErrorCode::invalid_argument,
                      "'{}' is not FROM=TO, two GPUs by their numbers or uuids, such as 0=1", text);
}

Result<std::vector<GpuPair>> plan_gpu_moves(const std::vector<GpuPair>& moves,
                                            const std::vector<driver::Gpu>& gpus,
                                            const client::BytesByGpu& needs) {
    const auto typed = GPU_SLEEP_TRY(places_of(moves, gpus));
    auto places = typed;
    complete(places);
    GPU_SLEEP_TRY(check_needs(typed, places, gpus, needs));
    std::vector<GpuPair> pairs;
    for (std::size_t i = 0; i < gpus.size(); ++i) pairs.push_back({gpus[i].uuid, gpus[*places[i]].uuid});
    return pairs;
}

client::BytesByGpu moved(const client::BytesByGpu& needs, const std::vector<GpuPair>& pairs) {
    client::BytesByGpu there;
    for (const auto& [uuid, bytes] : needs) there[place_of(uuid, pairs)] = bytes;
    return there;
}

} // namespace gpu_sleep::control
