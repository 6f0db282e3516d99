// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-sleep: puts a process to sleep.

#include "cli/operation.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-sleep 4242                               keep contents in host memory\n"
    "  gpu-sleep 4242 --level 2 --keep weights      drop everything but one tag\n"
    "  gpu-sleep 4242 --tags kv_cache               a part of it\n"
    "  gpu-sleep 4242 --on-touch wake               until it uses the GPU again\n"
    "  gpu-sleep 4242 --store file --dir /var/tmp/sleep   keep contents in compressed files\n"
    "  gpu-sleep 4242 --dry-run                     what would be freed, kept, dropped\n"
    "  gpu-sleep 4242 --engine driver               a process that has no agent\n";

/// What was typed, where the request has no place for it as it is.
struct Typed {
    std::optional<Milliseconds> timeout;
    std::vector<std::string> stores;
    std::string directory;
    std::string spill;
    cli::Engine engine = cli::Engine::agent;
};

void add_request(CLI::App& app, model::SleepRequest& request, Typed& typed) {
    cli::add_choice(
        app, "--level", "1|2",
        [&request](const std::string& word) {
            request.level = word == "1" ? model::Level::keep : model::Level::drop;
        },
        "1 keeps contents in host memory; 2 drops what no policy or span preserves (default: 1)");
    cli::add_tags(app, "--tags", request.tags, "Only these tags (default: all)");
    cli::add_tags(app, "--keep", request.keep, "Keep the contents of these tags, whatever their policy");
    cli::add_tags(app, "--discard", request.discard,
                  "Drop the contents of these tags, whatever their policy");
    cli::add_flag(app, "--require-refill", request.require_refill,
                  "Fail instead of dropping a tag that the program cannot refill");
    cli::add_flag(app, "--dry-run", request.dry_run,
                  "Change nothing; say what would be freed, kept and dropped");
    cli::add_limit(app, "--timeout", typed.timeout,
                   "Time limit until GPU memory is released (default: 30 s for the program's callbacks and\n"
                   "running GPU work, and no limit for copying that advances)");
    app.add_option("--store", typed.stores,
                   "Where contents go: host or file, or for some tags, as in weights=file,kv_cache=host")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("STORE|TAG=STORE,...");
    cli::add_path(app, "--dir", "DIR", typed.directory,
                  "The directory for files, private to the process's user");
    cli::add_path(app, "--spill", "DIR", typed.spill, "Use files in DIR if host memory is too small");
    cli::add_flag(app, "--keep-files", request.keep_files, "Leave the files when the process wakes or ends");
    cli::add_flag(app, "--copy-all", request.copy_all,
                  "Copy everything that is kept, also what has not changed since the last sleep");
    cli::add_flag(app, "--release-retained", request.release_retained,
                  "Put nothing to sleep; give back the host memory that the last sleep left for the next");
    cli::add_gate(app, request.on_touch, request.gate, request.touch_limit,
                  "default: as the process was started");
    cli::add_choice(
        app, "--engine", "agent|driver|auto",
        [&typed](const std::string& word) {
            typed.engine = word == "auto"     ? cli::Engine::automatic
                           : word == "driver" ? cli::Engine::driver
                                              : cli::Engine::agent;
        },
        "agent: as described here; driver: the CUDA driver's checkpoint, for a process that has no agent, "
        "to\n"
        "host memory and as a whole; auto: the agent if there is one (default: agent)");
    cli::add_flag(app, "--force", request.force,
                  "Sleep even if the process uses the GPU in a way that the agent cannot see");
}

/// The first tag that is to be both kept and dropped, or null.
const std::string* contradiction(const model::SleepRequest& request) {
    const auto tag = std::find_first_of(request.keep.begin(), request.keep.end(), request.discard.begin(),
                                        request.discard.end());
    return tag == request.keep.end() ? nullptr : &*tag;
}

/// Puts what was typed of stores into the request, each tag once. Returns what is wrong with it, or nothing.
std::string read_stores(const Typed& typed, model::SleepRequest& request) {
    std::set<std::string> tags; // an empty one stands for those that are not named
    for (const auto& text : typed.stores) {
        const auto equals = text.find('=');
        const auto store = model::parse_store(equals == std::string::npos ? text : text.substr(equals + 1));
        if (!store) return fmt::format("--store: '{}' names no store; there are host and file", text);
        const auto tag = equals == std::string::npos ? std::string() : text.substr(0, equals);
        if (!tags.insert(tag).second)
            return fmt::format("--store: '{}' names a second store for the same tags", text);
        if (equals == std::string::npos) {
            request.store = *store;
            continue;
        }
        if (auto problem = cli::tag_problem(tag); !problem.empty()) return "--store: " + problem;
        request.stores.push_back({tag, *store});
    }
    return {};
}

/// Puts the directory into the request. Returns what is wrong with it, or nothing.
std::string read_directory(const Typed& typed, model::SleepRequest& request) {
    const bool needs_directory = model::uses_files(request);
    request.spill = !typed.spill.empty();
    if (request.spill && !typed.directory.empty() && typed.directory != typed.spill)
        return "--dir and --spill name two directories; one sleep uses one";
    const auto& directory = typed.directory.empty() ? typed.spill : typed.directory;
    if (needs_directory && directory.empty()) return "--store file needs --dir";
    if (!needs_directory && !request.spill && !directory.empty()) return "--dir is for --store file";
    if (request.keep_files && directory.empty()) return "--keep-files is for --store file and --spill";
    if (directory.empty()) return {};
    std::error_code failure;
    request.directory = std::filesystem::absolute(directory, failure).lexically_normal();
    if (!failure) return {};
    return fmt::format("the directory '{}' lies in a working directory that is gone", directory);
}

/// Whether anything is asked for besides that it sleeps.
bool asks_for_more(const model::SleepRequest& request) {
    return request.level != model::Level::keep || !request.tags.empty() || !request.keep.empty() ||
           !request.discard.empty() || request.require_refill || request.on_touch || request.gate ||
           request.touch_limit || request.force || !request.stores.empty() ||
           request.store != model::Store::host || request.spill || request.copy_all;
}

/// What is wrong with options that are good one by one, or nothing.
std::string problem(const model::SleepRequest& request, cli::Engine engine) {
    if (const auto* tag = contradiction(request))
        return fmt::format("--keep and --discard: the tag '{}' cannot be both kept and discarded", *tag);
    if (engine != cli::Engine::agent && (asks_for_more(request) || request.release_retained))
        return "--engine driver and --engine auto put all of a process to sleep, to host memory, and go with "
               "none of the "
               "options that ask for anything else";
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
    Typed typed;
    cli::add_basics(app, k_examples);
    cli::add_target(app, operation.target)->required();
    cli::add_user(app, operation.user);
    add_request(app, request, typed);
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    auto text = read_stores(typed, request);
    if (text.empty()) text = read_directory(typed, request);
    if (text.empty()) text = problem(request, typed.engine);
    if (!text.empty()) return cli::usage_error("gpu-sleep", text, operation.output.json);
    request.bounds_all = typed.timeout.has_value();
    request.timeout = typed.timeout.value_or(request.timeout);
    operation.request = std::move(request);
    operation.engine = typed.engine;
    return cli::run(operation);
}
