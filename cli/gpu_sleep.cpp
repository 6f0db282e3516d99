// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-sleep: puts a process to sleep.

#include "cli/operation.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-sleep 4242                               keep contents in host memory\n"
    "  gpu-sleep 4242 --level 2 --keep weights      drop everything but one tag\n"
    "  gpu-sleep 4242 --tags kv_cache               a part of it\n"
    "  gpu-sleep 4242 --on-touch wake               until it uses the GPU again\n"
    "  gpu-sleep 4242 --store file --dir /var/tmp/sleep   keep contents in compressed files\n"
    "  gpu-sleep 4242 --dry-run                     what would be freed, kept, dropped\n";

/// What was typed, where the request has no place for it as it is.
struct Typed {
    int level = 1;
    std::optional<Milliseconds> timeout;
    std::optional<model::GateMode> gate;
    std::vector<std::string> stores;
    std::string directory;
    std::string spill;
};

void add_request(CLI::App& app, model::SleepRequest& request, Typed& typed) {
    app.add_option("--level", typed.level,
                   "1 keeps contents in host memory; 2 drops what no policy or span preserves")
        ->type_name("1|2")
        ->check([](const std::string& text) {
            return text == "1" || text == "2" ? std::string()
                                              : fmt::format("'{}' is not a level; there are 1 and 2", text);
        })
        ->capture_default_str();
    cli::add_tags(app, "--tags", request.tags, "Only these tags (default: all)");
    cli::add_tags(app, "--keep", request.keep, "Keep the contents of these tags, whatever their policy");
    cli::add_tags(app, "--discard", request.discard,
                  "Drop the contents of these tags, whatever their policy");
    app.add_flag("--require-refill", request.require_refill,
                 "Fail rather than drop what the program cannot refill");
    app.add_flag("--dry-run", request.dry_run, "Change nothing; say what would be freed, kept and dropped");
    cli::add_limit(app, "--timeout", typed.timeout,
                   "How long all may take until GPU memory is released (default: 30 s for the program's\n"
                   "callbacks and the GPU's running work, and copying takes as long as it advances)");
    app.add_option("--store", typed.stores,
                   "Where contents go: host or file, or for some tags, as in weights=file,kv_cache=host")
        ->delimiter(',')
        ->type_name("STORE|TAG=STORE,...");
    app.add_option("--dir", typed.directory, "The directory for files, private to the process's user")
        ->type_name("DIR");
    app.add_option("--spill", typed.spill, "Use files in DIR when host memory will not do")
        ->type_name("DIR")
        ->check([](const std::string& text) {
            return text.empty() ? "the directory has no name" : std::string();
        });
    app.add_flag("--keep-files", request.keep_files, "Leave the files when the process wakes or ends");
    cli::add_gate(app, request.on_touch, typed.gate, "default: as the process was started");
    cli::add_limit(app, "--touch-limit", request.touch_limit,
                   "How long work that wakes the process may wait for GPU memory (default: for ever)");
    app.add_flag("--force", request.force,
                 "Sleep although the process uses the GPU in a way that cannot be seen");
}

/// The first tag that is to be both kept and dropped, or null.
const std::string* contradiction(const model::SleepRequest& request) {
    const auto tag = std::find_first_of(request.keep.begin(), request.keep.end(), request.discard.begin(),
                                        request.discard.end());
    return tag == request.keep.end() ? nullptr : &*tag;
}

/// Puts what was typed of stores into the request. Returns what is wrong with it, or nothing.
std::string read_stores(const Typed& typed, model::SleepRequest& request) {
    for (const auto& text : typed.stores) {
        const auto equals = text.find('=');
        const auto store = model::parse_store(equals == std::string::npos ? text : text.substr(equals + 1));
        if (!store) return fmt::format("'{}' names no store; there are host and file", text);
        if (equals == std::string::npos) {
            request.store = *store;
            continue;
        }
        const auto tag = text.substr(0, equals);
        if (!model::is_valid_tag(tag)) return fmt::format("'{}' is no tag", tag);
        request.stores.push_back({tag, *store});
    }
    const bool needs_directory =
        request.store == model::Store::file ||
        std::any_of(request.stores.begin(), request.stores.end(),
                    [](const model::TagStore& each) { return each.store == model::Store::file; });
    request.spill = !typed.spill.empty();
    if (request.spill && !typed.directory.empty() && typed.directory != typed.spill)
        return "--dir and --spill name two directories; one sleep uses one";
    const auto& directory = typed.directory.empty() ? typed.spill : typed.directory;
    if (needs_directory && directory.empty()) return "a file store needs --dir";
    if (!needs_directory && !request.spill && !directory.empty()) return "--dir is for --store file";
    if (request.keep_files && directory.empty()) return "--keep-files is for --store file and --spill";
    if (directory.empty()) return {};
    std::error_code failure;
    request.directory = std::filesystem::absolute(directory, failure).lexically_normal();
    return failure ? fmt::format("'{}' lies in a working directory that is gone", directory) : std::string();
}

/// What is wrong with options that are good one by one, or nothing.
std::string trouble(const model::SleepRequest& request) {
    if (const auto* tag = contradiction(request))
        return fmt::format("the tag '{}' cannot be both kept and discarded", *tag);
    if (request.touch_limit && request.on_touch && request.on_touch != model::OnTouch::wake)
        return "--touch-limit is for work that wakes the process: --on-touch wake";
    return {};
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
    if (text.empty()) text = trouble(request);
    if (!text.empty()) return cli::usage_error("gpu-sleep", text, operation.output.json);
    request.level = static_cast<model::Level>(typed.level);
    request.gate = typed.gate;
    request.bounds_all = typed.timeout.has_value();
    request.timeout = typed.timeout.value_or(request.timeout);
    operation.request = std::move(request);
    return cli::run(operation);
}
