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
    "  gpu-sleep 4242 --dry-run                     what would be freed, kept, dropped\n";

void add_request(CLI::App& app, model::SleepRequest& request, int& level) {
    app.add_option("--level", level,
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
}

/// The first tag that is to be both kept and dropped, or null.
const std::string* contradiction(const model::SleepRequest& request) {
    const auto tag = std::find_first_of(request.keep.begin(), request.keep.end(), request.discard.begin(),
                                        request.discard.end());
    return tag == request.keep.end() ? nullptr : &*tag;
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app(
        "Puts a GPU process to sleep: frees its GPU memory and keeps the process. gpu-wake brings it back.",
        "gpu-sleep");
    cli::Operation operation{"gpu-sleep", {}, {}, {}, {}};
    model::SleepRequest request;
    int level = 1;
    cli::add_basics(app, k_examples);
    cli::add_target(app, operation.target)->required();
    add_request(app, request, level);
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    if (const auto* tag = contradiction(request)) {
        std::cerr << "gpu-sleep: the tag '" << *tag << "' cannot be both kept and discarded\n";
        return exit_status::usage;
    }
    request.level = static_cast<model::Level>(level);
    operation.limit = request.timeout;
    operation.request = std::move(request);
    return cli::run(operation);
}
