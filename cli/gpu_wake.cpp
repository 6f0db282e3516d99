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
                                   "  gpu-wake 4242 --wait 60s       try again while GPU memory is short\n"
                                   "  gpu-wake 4242 --make-room      others of its user sleep if it is\n"
                                   "  gpu-wake 4242 --gpu 0=1        from a deep sleep: on another GPU\n";

} // namespace

int main(int argc, char** argv) {
    CLI::App app(
        "Wakes a GPU process that gpu-sleep has put to sleep: its memory returns, at the same addresses.",
        "gpu-wake");
    cli::CommandRun operation{"gpu-wake", {}, {}, {}, {}};
    std::vector<std::string> moves;
    model::WakeRequest request;
    cli::add_basics(app, k_examples);
    std::optional<Milliseconds> timeout;
    cli::add_targets(app, operation.targets, operation.takes_several);
    cli::add_selection(app, operation.selection);
    cli::add_user(app, operation.user);
    cli::add_tags(app, "--tags", request.tags, "Only these tags (default: all)");
    cli::add_tags(app, "--order", request.order,
                  "These tags first, one after another, then the rest; each is awake before the next begins");
    std::optional<Milliseconds> wait;
    std::optional<Milliseconds> min_awake;
    cli::add_limit(app, "--wait", wait,
                   "How long to try again while GPU memory is short (default: 0 s; 10 s with --make-room)");
    cli::add_flag(app, "--make-room", request.make_room,
                  "Where it is short, put others of the same user to sleep, the least recently used first");
    cli::add_min_awake(app, min_awake);
    cli::add_limit(app, "--timeout", timeout,
                   "Time limit, without --wait, until memory is back, and then once more for callbacks\n"
                   "(default: 30 s for callbacks, and no limit for copying that advances)");
    cli::add_flag(app, "--dry-run", request.dry_run,
                  "Change nothing; say what would be taken and brought back");
    cli::add_flag(app, "--force", operation.force,
                  "Of what the driver put to sleep: restore it though it is not known whether there is room");
    app.add_option("--gpu", moves,
                   "Wake on other GPUs of the same kind, from a deep sleep or what the driver put to sleep;\n"
                   "each is a number of nvidia-smi's or a uuid")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("FROM=TO,...");
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    auto text = cli::selection_problem(operation.selection, operation.targets, operation.takes_several);
    for (const auto& word : moves) {
        auto move = cli::parse_gpu_move(word);
        if (!move && text.empty()) text = "--gpu: " + move.error().message;
        if (move) operation.moves.push_back(*std::move(move));
    }
    if (text.empty() && min_awake && !request.make_room) text = "--min-awake is for --make-room";
    if (text.empty() && operation.selection.is_joint() && (!request.order.empty() || request.make_room))
        text = "--order and --make-room are for one process, without --tree or --group";
    if (text.empty() && (operation.selection.is_joint() || operation.targets.size() != 1) && !moves.empty())
        text = "--gpu is for one process, without --tree or --group";
    if (!text.empty()) return cli::usage_error("gpu-wake", text, operation.output.json);
    constexpr Milliseconds k_wait_for_room{10'000};
    request.wait = wait.value_or(request.make_room ? k_wait_for_room : Milliseconds(0));
    request.min_awake = min_awake.value_or(request.min_awake);
    request.joint = operation.selection.is_joint() && !request.dry_run;
    request.bounds_all = timeout.has_value();
    request.timeout = timeout.value_or(request.timeout);
    operation.request = std::move(request);
    return cli::run(operation);
}
