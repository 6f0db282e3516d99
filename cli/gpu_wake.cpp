// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-wake: wakes a process.

#include "cli/operation.hpp"

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples = "  gpu-wake 4242                  everything back, at the same addresses\n"
                                   "  gpu-wake 4242 --tree           a server of several processes\n"
                                   "  gpu-wake 4242 --tags weights   the rest stays asleep\n"
                                   "  gpu-wake 4242 --order weights  the weights first, then the rest\n"
                                   "  gpu-wake 4242 --wait 60s       try again while GPU memory is short\n";

} // namespace

int main(int argc, char** argv) {
    CLI::App app(
        "Wakes a GPU process that gpu-sleep has put to sleep: its memory returns, at the same addresses.",
        "gpu-wake");
    cli::CommandRun operation{"gpu-wake", {}, {}, {}, {}};
    model::WakeRequest request;
    cli::add_basics(app, k_examples);
    std::optional<Milliseconds> timeout;
    cli::add_target(app, operation.target);
    cli::add_selection(app, operation.selection);
    cli::add_user(app, operation.user);
    cli::add_tags(app, "--tags", request.tags, "Only these tags (default: all)");
    cli::add_tags(app, "--order", request.order,
                  "These tags first, one after another, then the rest; each is awake before the next begins");
    cli::add_duration(app, "--wait", request.wait, "How long to try again while GPU memory is short");
    cli::add_limit(app, "--timeout", timeout,
                   "Time limit, without --wait, until memory is back, and then once more for callbacks\n"
                   "(default: 30 s for callbacks, and no limit for copying that advances)");
    cli::add_flag(app, "--dry-run", request.dry_run,
                  "Change nothing; say what would be taken and brought back");
    cli::add_flag(app, "--force", operation.force,
                  "Of what the driver put to sleep: restore it though it is not known whether there is room");
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    auto text = cli::selection_problem(operation.selection, operation.target);
    if (text.empty() && operation.selection.is_joint() && !request.order.empty())
        text = "--order is for one process, without --tree or --group";
    if (!text.empty()) return cli::usage_error("gpu-wake", text, operation.output.json);
    request.joint = operation.selection.is_joint() && !request.dry_run;
    request.bounds_all = timeout.has_value();
    request.timeout = timeout.value_or(request.timeout);
    operation.request = std::move(request);
    return cli::run(operation);
}
