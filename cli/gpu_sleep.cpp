// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-sleep: puts a process to sleep.

#include "cli/operation.hpp"

#include <algorithm>
#include <iostream>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-sleep 4242                               keep contents in host memory\n"
    "  gpu-sleep 4242 --level 2 --keep weights      drop everything but one tag\n"
    "  gpu-sleep 4242 --tags kv_cache               a part of it\n"
    "  gpu-sleep 4242 --on-touch wake               until it uses the GPU again\n"
    "  gpu-sleep 4242 --dry-run                     what would be freed, kept, dropped\n";

/// What was typed, where the request has no place for it as it is.
struct Typed {
    int level = 1;
    std::optional<model::GateMode> gate;
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
    cli::add_duration(app, "--timeout", request.timeout,
                      "How long the program's callbacks and the GPU's running work may take");
    cli::add_gate(app, request.on_touch, typed.gate, "default: as the process was started");
    cli::add_limit(app, "--touch-limit", request.touch_limit,
                   "How long work that wakes the process may wait for GPU memory (default: for ever)");
    app.add_flag("--force", request.force,
                 "Sleep although a library is loaded whose use of the GPU cannot be seen");
}

/// The first tag that is to be both kept and dropped, or null.
const std::string* contradiction(const model::SleepRequest& request) {
    const auto tag = std::find_first_of(request.keep.begin(), request.keep.end(), request.discard.begin(),
                                        request.discard.end());
    return tag == request.keep.end() ? nullptr : &*tag;
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
    cli::Operation operation{"gpu-sleep", {}, {}, {}, {}};
    model::SleepRequest request;
    Typed typed;
    cli::add_basics(app, k_examples);
    cli::add_target(app, operation.target)->required();
    add_request(app, request, typed);
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    if (const auto text = trouble(request); !text.empty()) {
        std::cerr << "gpu-sleep: " << text << '\n';
        return exit_status::usage;
    }
    request.level = static_cast<model::Level>(typed.level);
    request.gate = typed.gate.value_or(model::GateMode::shut);
    operation.limit = request.timeout;
    operation.request = std::move(request);
    return cli::run(operation);
}
