// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-switch: wakes a process at once, whoever has to sleep for it.

#include "cli/command_run.hpp"

using namespace gpu_sleep;

namespace {

constexpr const char* k_program = "gpu-switch";
constexpr const char* k_examples =
    "  gpu-switch llama            wakes llama; puts others to sleep for it\n"
    "  gpu-switch llama --dry-run  says how much would be taken and restored\n";

/// Options that are not read into the command at once.
struct Typed {
    std::string target;
    control::Command command{.request = model::WakeRequest()};
    std::optional<Milliseconds> timeout, wait;
    cli::OutputOptions output;
};

usage::Table table_of(Typed& typed) {
    auto& request = std::get<model::WakeRequest>(typed.command.request);
    return {
        k_program,
        "Gives the GPU to a process: wakes it, and puts the user's other processes to sleep until it fits.",
        {"[OPTION]... PID"},
        {{"Options",
          {cli::target_row(typed.target), usage::brief(cli::user_row(typed.command.whom.user)),
           usage::brief({"--wait", usage::duration(typed.wait),
                         "How long to retry while GPU memory is short (default: 60 s; 0 s if only inhibitors "
                         "prevent it)"}),
           usage::brief(
               {"--timeout", usage::duration(typed.timeout),
                "Give up if memory is not back within this time; callbacks get the same time in addition "
                "(default: 30 s, not counting copying)"}),
           usage::brief(
               {"--dry-run", usage::flag(request.dry_run), "Only show how much would be taken and restored"}),
           usage::brief(cli::json_row(typed.output.json)),
           usage::brief(cli::quiet_row(typed.output.quiet))}}},
        k_examples,
        "As for gpu-wake."};
}

} // namespace

int main(int argc, char** argv) {
    constexpr Milliseconds k_wait{60'000}; // for those in its way to be copied, too
    Typed typed;
    if (const auto status = cli::parse(table_of(typed), argc, argv)) return *status;
    if (typed.target.empty()) return cli::usage_error(k_program, "PID is missing", typed.output.json);
    auto& request = std::get<model::WakeRequest>(typed.command.request);
    typed.command.whom.words = {typed.target};
    request.make_room = true;
    request.min_awake = Milliseconds(0); // so it goes before those that wait for their turn
    request.wait = typed.wait.value_or(k_wait);
    request.minds_inhibitors = !typed.wait;
    request.bounds_all = typed.timeout.has_value();
    request.timeout = typed.timeout.value_or(request.timeout);
    return cli::run(k_program, std::move(typed.command), typed.output);
}
