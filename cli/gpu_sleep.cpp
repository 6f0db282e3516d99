// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-sleep: puts a process to sleep.

#include "cli/operation.hpp"
#include "cli/sleep_options.hpp"

#include <algorithm>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-sleep 4242                               keep contents in host memory\n"
    "  gpu-sleep 4242 --level 2 --keep weights      drop everything but one tag\n"
    "  gpu-sleep 4242 --tags kv_cache               a part of it\n"
    "  gpu-sleep 4242 --on-touch wake               until it uses the GPU again\n"
    "  gpu-sleep 4242 --dir /var/tmp/sleep          keep contents in compressed files\n"
    "  gpu-sleep 4242 --dry-run                     what would be freed, kept, dropped\n"
    "  gpu-sleep 4711 4712 train.py                 several, each by its pid or its name\n"
    "  gpu-sleep 4242 --tree                        a server of several processes, all or none of them\n"
    "  gpu-sleep 4242 --engine driver               a process that has no agent\n";

void add_request(CLI::App& app, model::SleepRequest& request, std::optional<Milliseconds>& timeout,
                 cli::TypedStores& stores, cli::Engine& engine) {
    cli::add_level(app, request.level);
    cli::add_tags(app, "--tags", request.tags, "Only these tags (default: all)");
    cli::add_tags(app, "--keep", request.keep, "Keep the contents of these tags, whatever their policy");
    cli::add_tags(app, "--discard", request.discard,
                  "Drop the contents of these tags, whatever their policy");
    cli::add_flag(app, "--require-refill", request.require_refill,
                  "Fail instead of dropping a tag that the program cannot refill");
    cli::add_flag(app, "--dry-run", request.dry_run,
                  "Change nothing; say what would be freed, kept and dropped");
    cli::add_limit(app, "--timeout", timeout,
                   "Time limit until GPU memory is released (default: 30 s for the program's callbacks and\n"
                   "running GPU work, and no limit for copying that advances)");
    cli::add_stores(app, stores);
    cli::add_path(app, "--spill", "DIR", stores.spill, "Use files in DIR if host memory is too small");
    cli::add_flag(app, "--keep-files", request.keep_files, "Leave the files when the process wakes or ends");
    cli::add_flag(app, "--copy-all", request.copy_all,
                  "Copy everything that is kept, also what has not changed since the last sleep");
    cli::add_flag(app, "--check", request.check_copies,
                  "Read what is kept in host memory, and compare it with the GPU's, before GPU memory is\n"
                  "released");
    cli::add_flag(app, "--release-retained", request.release_retained,
                  "Put nothing to sleep; give back the host memory that the last sleep left for the next");
    cli::add_gate(app, request.on_touch, request.gate, request.touch_limit,
                  "default: as the process was started");
    cli::add_flag(app, "--deep", request.deep,
                  "When it sleeps, have the CUDA driver take the rest from the GPU, too: contexts, modules,\n"
                  "memory that the agent does not own");
    cli::add_choice(
        app, "--engine", "agent|driver|auto",
        [&engine](const std::string& word) { engine = cli::engine_of(word); },
        "agent: as described here; driver: the CUDA driver's checkpoint, for a process that has no agent, "
        "to\n"
        "host memory and as a whole; auto: the agent if there is one (default: agent)");
    cli::add_flag(app, "--ignore-inhibitors", request.ignore_inhibitors,
                  "Sleep even if gpu-inhibit, or the program, has sleeps refused");
    cli::add_flag(app, "--force", request.force,
                  "Sleep even if the process uses the GPU in a way that the agent cannot see");
}

/// The first tag that is to be both kept and dropped, or null.
const std::string* contradiction(const model::SleepRequest& request) {
    const auto tag = std::find_first_of(request.keep.begin(), request.keep.end(), request.discard.begin(),
                                        request.discard.end());
    return tag == request.keep.end() ? nullptr : &*tag;
}

/// Whether anything is asked for besides that it sleeps.
bool asks_for_more(const model::SleepRequest& request) {
    return request.level != model::Level::keep || !request.tags.empty() || !request.keep.empty() ||
           !request.discard.empty() || request.require_refill || request.on_touch || request.gate ||
           request.touch_limit || request.force || !request.stores.empty() || request.store_is_named ||
           request.spill || request.copy_all || request.ignore_inhibitors || request.check_copies ||
           request.deep;
}

/// What is wrong with options that are good one by one, or nothing.
std::string problem(const model::SleepRequest& request, cli::Engine engine) {
    if (const auto* tag = contradiction(request))
        return fmt::format("--keep and --discard: the tag '{}' cannot be both kept and discarded", *tag);
    if (engine != cli::Engine::agent && (asks_for_more(request) || request.release_retained))
        return "--engine driver and --engine auto put all of a process to sleep, to host memory, and go with "
               "none of the "
               "options that ask for anything else";
    if (request.deep && (!request.tags.empty() || request.gate == model::GateMode::checked))
        return "--deep puts all of a process to sleep, and lets none of its work pass: neither --tags nor "
               "--gate checked "
               "goes with it";
    if (request.release_retained && asks_for_more(request))
        return "--release-retained puts nothing to sleep, and goes with none of the options of a sleep";
    return cli::touch_problem(request.on_touch, request.touch_limit);
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app(
        "Puts a GPU process to sleep: frees its GPU memory and keeps the process. gpu-wake brings it back.",
        "gpu-sleep");
    cli::CommandRun operation{"gpu-sleep", {}, {}, {}, {}};
    model::SleepRequest request;
    std::optional<Milliseconds> timeout;
    cli::TypedStores stores;
    cli::add_basics(app, k_examples);
    cli::add_targets(app, operation.targets, operation.takes_several);
    cli::add_selection(app, operation.selection);
    cli::add_user(app, operation.user);
    cli::add_flag(app, "--yes", operation.accepts_losses,
                  "Drop what the program has not declared refillable without asking, or warning, before");
    auto engine = cli::Engine::agent;
    add_request(app, request, timeout, stores, engine);
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    auto text = cli::selection_problem(operation.selection, operation.targets, operation.takes_several);
    if (text.empty()) text = cli::read_stores(stores, request);
    if (text.empty()) text = problem(request, engine);
    if (text.empty() && engine != cli::Engine::agent && operation.selection.is_joint())
        text = "--engine driver and --engine auto are for processes by themselves, without --tree or --group";
    if (text.empty() && engine != cli::Engine::agent && operation.targets.empty())
        text = "PID is missing, which --engine driver and --engine auto are for";
    if (!text.empty()) return cli::usage_error("gpu-sleep", text, operation.output.json);
    request.bounds_all = timeout.has_value();
    request.timeout = timeout.value_or(request.timeout);
    request.joint = operation.selection.is_joint() && !request.dry_run && !request.release_retained;
    operation.request = std::move(request);
    operation.engine = engine;
    return cli::run(operation);
}
