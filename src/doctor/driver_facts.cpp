// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking the driver, and a file system, apart; their answers come as JSON.

#include "base/guard.hpp"
#include "doctor/facts.hpp"

#include <nlohmann/json.hpp>

#include <utility>

// Each beside its type, where the library looks for it.
namespace gpu_sleep::driver {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuSetup, index, uuid, name, is_persistent, is_divided, is_exclusive,
                                   is_prohibited, link_generation, link_width, max_link_generation,
                                   max_link_width)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Setup, driver_version, gpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceCapabilities, device, name, uuid, compute_major, compute_minor,
                                   has_virtual_memory, uses_mps, total, maps_host_memory)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Capabilities, cuda_version, has_checkpoint, devices)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkSpeed, to_host, to_device)
} // namespace gpu_sleep::driver
namespace gpu_sleep::store {
static void to_json(nlohmann::json& json, const SnapshotDirectory::FreeSpace& space) {
    json = {space.bytes, space.in_memory};
}
static void from_json(const nlohmann::json& json, SnapshotDirectory::FreeSpace& space) {
    space = {json.at(0).get<Bytes>(), json.at(1).get<bool>()};
}
} // namespace gpu_sleep::store

namespace gpu_sleep::doctor {
namespace {

/// What `ask`, a function that returns a Result<Value>, gives apart. Errors: those of AskApart.
template <class Value, class Ask>
Result<Value> asked(const AskApart& apart, Milliseconds limit, Ask&& ask) {
    constexpr auto k_replace = nlohmann::json::error_handler_t::replace;
    const auto text = apart(limit, [&]() -> Result<std::string> {
        const Result<Value> answer = ask();
        if (!answer) return answer.error();
        return nlohmann::json(*answer).dump(-1, ' ', false, k_replace);
    });
    if (!text) return text.error();
    const auto value = nlohmann::json::parse(*text, nullptr, false);
    if (value.is_discarded()) return make_error(ErrorCode::internal, "its answer cannot be read");
    return guarded([&]() -> Result<Value> { return value.template get<Value>(); });
}

std::vector<Result<driver::LinkSpeed>> measure(const driver::Capabilities& capabilities,
                                               const AskApart& apart, Milliseconds limit) {
    std::vector<Result<driver::LinkSpeed>> links;
    for (const auto& each : capabilities.devices)
        links.push_back(
            asked<driver::LinkSpeed>(apart, limit, [&] { return driver::measure_link(each.device); }));
    return links;
}

/// Of a process that has no agent.
Result<checkpoint::State> ask_checkpoint(pid_t pid, const AskApart& apart, Milliseconds limit) {
    const auto state = asked<int>(apart, limit, [&]() -> Result<int> {
        const auto loaded = driver::Checkpoint::load();
        if (!loaded) return loaded.error();
        const auto stands = loaded->state(pid);
        if (!stands) return stands.error();
        return static_cast<int>(*stands);
    });
    if (!state) return state.error();
    return static_cast<checkpoint::State>(*state);
}

} // namespace

MachineFacts examine_machine(const MachineQuestions& questions, const AskApart& apart) {
    const auto limit = questions.timeout;
    MachineFacts facts{read_kernel(),
                       asked<driver::Setup>(apart, limit, driver::look_at_setup),
                       asked<driver::Capabilities>(apart, limit, driver::look_at_capabilities),
                       {},
                       {}};
    if (questions.measures && facts.capabilities) facts.links = measure(*facts.capabilities, apart, limit);
    if (!questions.directory.empty()) {
        using Space = store::SnapshotDirectory::FreeSpace;
        const auto look = [&] { return store::SnapshotDirectory::free_space_in(questions.directory); };
        facts.directory = DirectoryFacts{questions.directory, asked<Space>(apart, limit, look)};
    }
    return facts;
}

ProcessFacts examine_process(control::Finder& finder, control::Outcome outcome, Milliseconds timeout,
                             const AskApart& apart) {
    ProcessFacts facts{outcome.process, read_process(outcome.process.pid), std::move(outcome.answer), {}, {}};
    facts.rehearsal = facts.status;
    facts.how_to_go_on = finder.proc().how_to_go_on(facts.process);
    const auto* const error = std::get_if<Error>(&facts.status);
    if (error && error->code == ErrorCode::no_agent && !facts.kernel.is_stopped)
        facts.checkpoint = ask_checkpoint(facts.process.pid, apart, timeout);
    if (!std::holds_alternative<model::Report>(facts.status)) return facts;
    model::SleepRequest request;
    request.dry_run = true;
    request.ignore_inhibitors = true; // whether there are any, the status says
    request.timeout = timeout / 2;    // to wait for another operation
    model::WakeRequest wake;
    wake.dry_run = true;
    wake.timeout = request.timeout;
    const auto rehearsed = [&](const protocol::Request& asked) -> peers::Answer {
        auto socket = finder.connect(facts.process);
        if (!socket) return std::move(socket).error();
        control::Targets target;
        target.reached.push_back({facts.process, *std::move(socket)});
        return ask_each(finder, std::move(target), asked, timeout).front().answer;
    };
    facts.rehearsal = rehearsed(request);
    facts.wake = rehearsed(wake);
    return facts;
}

} // namespace gpu_sleep::doctor
