// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim: puts to sleep what has been idle.

#include "cli/operation.hpp"
#include "cli/sleep_options.hpp"

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-reclaim --idle 15m               what has been idle for 15 minutes sleeps until it is used again\n"
    "  gpu-reclaim --idle 15m --dry-run     what would sleep\n"
    "  gpu-reclaim llama --idle 1m          one of them, and why not if it does not sleep\n"
    "  gpu-reclaim --idle 4h --store file --dir /var/tmp/sleep\n"
    "  gpu-reclaim --idle 15m --quiet       for cron: says nothing, but for errors\n";

constexpr const char* k_statuses =
    "\nExit status: 0 done, or nothing had to be done; else that of the first process that failed:\n"
    "1 failed and awake, 2 wrong usage, 3 no such process or no agent in it, 4 timed out, 5 not permitted,\n"
    "6 damaged, 7 failed and asleep, 8 not enough host memory or disk space, 9 not known how it ended.";

} // namespace

int main(int argc, char** argv) {
    CLI::App app("Puts to sleep every GPU process that has been idle, until it uses the GPU again: one pass, "
                 "for cron or a timer.",
                 "gpu-reclaim");
    cli::CommandRun operation{"gpu-reclaim", {}, {}, {}, {}};
    model::SleepRequest request;
    request.on_touch = model::OnTouch::wake;
    std::optional<Milliseconds> timeout;
    cli::TypedStores stores;
    cli::add_basics(app, k_examples, k_statuses);
    cli::add_limit(app, "--idle", request.only_if_idle,
                   "Processes whose GPU has had no work for so long, as gpu-ps shows")
        ->required();
    cli::add_target(app, operation.target);
    cli::add_user(app, operation.user);
    cli::add_level(app, request.level);
    cli::add_tags(app, "--tags", request.tags, "Only these tags (default: all)");
    cli::add_stores(app, stores);
    cli::add_flag(app, "--dry-run", request.dry_run,
                  "Change nothing; say what would be freed, kept and dropped");
    cli::add_limit(
        app, "--timeout", timeout,
        "Time limit for each process until GPU memory is released (default: 30 s for the program's\n"
        "callbacks, and no limit for copying that advances)");
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    if (const auto text = cli::read_stores(stores, request); !text.empty())
        return cli::usage_error("gpu-reclaim", text, operation.output.json);
    request.bounds_all = timeout.has_value();
    request.timeout = timeout.value_or(request.timeout);
    operation.request = std::move(request);
    return cli::run(operation);
}
