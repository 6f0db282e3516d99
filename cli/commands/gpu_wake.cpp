// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-wake: wakes a process.

#include "cli/command_run.hpp"

using namespace gpu_sleep;

namespace {

constexpr const char* k_program = "gpu-wake";
constexpr const char* k_examples = "  gpu-wake 4242                  everything back, at the same addresses\n"
                                   "  gpu-wake 4242 --tags weights   the weights alone\n"
                                   "  gpu-wake 4242 --wait 60s       try again while GPU memory is short\n"
                                   "  gpu-wake 4242 --gpu 0=1        from a deep sleep: on another GPU\n";

/// What was typed, as far as it is not read into the command at once.
struct Typed {
    control::Command command{.request = model::WakeRequest()};
    std::optional<Milliseconds> timeout, wait, min_awake;
    std::vector<std::string> moves;
    cli::OutputOptions output;
};

usage::Table table_of(Typed& typed) {
    auto& whom = typed.command.whom;
    auto& request = std::get<model::WakeRequest>(typed.command.request);
    return {k_program,
            "Wakes a process that gpu-sleep has put to sleep: its GPU memory returns.",
            {"[OPTION]... PID...", "[OPTION]... --all|--group GROUP"},
            {{"Which processes",
              {cli::targets_row(whom.words), cli::all_row(whom.takes_several),
               usage::brief(cli::tree_row(whom)), cli::group_row(whom), cli::user_row(whom.user)}},
             {"What wakes, and where",
              {usage::brief({"--tags", cli::tags(request.tags),
                             "Wake only these tags. GPU work still waits, unless the sleep had --gate "
                             "checked"}),
               {"--live-bytes", usage::size(request.live_bytes),
                "How much memory to move from host memory back to the GPU (default: all that "
                "gpu-sleep --live moved)"},
               {"--with-sharers", usage::flag(request.with_sharers),
                "Also wake the processes whose memory this one has opened, if they sleep"},
               usage::brief({"--gpu", usage::list("FROM=TO,...", typed.moves),
                             "From a deep sleep: wake on another GPU of the same kind"})}},
             {"When GPU memory is short",
              {usage::brief({"--wait", usage::duration(typed.wait),
                             "How long to retry while GPU memory is short (default: 0 s; 10 s with "
                             "--make-room)"}),
               usage::brief({"--make-room", usage::flag(request.make_room),
                             "If GPU memory is short, put the user's least recently used "
                             "processes to sleep"}),
               cli::min_awake_row(typed.min_awake, "--make-room"),
               {"--force", usage::flag(typed.command.force),
                "Restore a process without an agent even if it is unknown whether there is room"}}},
             {"How it wakes",
              {usage::brief({"--dry-run", usage::flag(request.dry_run),
                             "Only show how much would be taken and restored"}),
               {"--timeout", usage::duration(typed.timeout),
                "Give up if memory is not back within this time; callbacks get the same time in addition "
                "(default: 30 s, "
                "not counting copying)"}}},
             {"Output", {cli::json_row(typed.output.json), cli::quiet_row(typed.output.quiet)}}},
            k_examples,
            "0 done, 1 failed (the process is awake; memory that runs from host memory stays "
            "there), 2 wrong usage, 3 no such process or no agent in it, 4 timed out, 5 not "
            "permitted, 6 damaged contents, 7 failed (the process is asleep), 8 not enough "
            "host memory, 9 outcome not known."};
}

} // namespace

int main(int argc, char** argv) {
    Typed typed;
    auto& [command, timeout, wait, min_awake, moves, output] = typed;
    auto& request = std::get<model::WakeRequest>(command.request);
    if (const auto status = cli::parse(table_of(typed), argc, argv)) return *status;
    const auto& whom = command.whom;
    auto text = cli::selection_problem(whom);
    for (const auto& word : moves) {
        auto move = control::parse_gpu_move(word);
        if (!move && text.empty()) text = "--gpu: " + move.error().message;
        if (move) command.moves.push_back(*std::move(move));
    }
    if (text.empty() && min_awake && !request.make_room)
        text = "--min-awake can be used only with --make-room";
    if (text.empty() && whom.is_joint() && request.make_room)
        text = "--make-room is for one process, without --tree or --group";
    if (text.empty() && (whom.is_joint() || whom.words.size() != 1) && !moves.empty())
        text = "--gpu is for one process, without --tree or --group";
    if (!text.empty()) return cli::usage_error(k_program, text, output.json);
    constexpr Milliseconds k_wait_for_room{10'000};
    request.wait = wait.value_or(request.make_room ? k_wait_for_room : Milliseconds(0));
    request.min_awake = min_awake.value_or(request.min_awake);
    request.joint = whom.is_joint() && !request.dry_run;
    request.bounds_all = timeout.has_value();
    request.timeout = timeout.value_or(request.timeout);
    return cli::run(k_program, std::move(command), output);
}
