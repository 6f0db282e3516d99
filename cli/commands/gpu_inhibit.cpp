// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-inhibit: has a process refuse to be put to sleep, for a time or while a command runs.

#include "base/text.hpp"
#include "cli/command_run.hpp"
#include "cli/preload.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "model/environment.hpp"

#include <cstdlib>
#include <cstring>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-inhibit 4242                       refuses sleeps until it is released\n"
    "  gpu-inhibit --for 4h llama             for four hours\n"
    "  gpu-inhibit --release 4242             allow sleeps again\n"
    "  gpu-inhibit -- gpu-run -- ./train      while the command runs\n";
constexpr const char* k_statuses =
    "0 done, 2 wrong usage, 3 no such process or no agent in it, 4 timed out, 5 not permitted. With COMMAND: "
    "that of COMMAND, 126 if it cannot be executed, 127 if there is no such command.";

struct InhibitOptions {
    control::Selection whom;
    model::InhibitRequest request;
    cli::OutputOptions output;
};

usage::Table table_of(InhibitOptions& options) {
    return {
        "gpu-inhibit",
        "Keeps others from putting a GPU process to sleep: for a time, or while COMMAND runs.",
        {"[OPTION]... PID...", "[--for DURATION] -- COMMAND [ARGUMENT]..."},
        {{"Options",
          {cli::targets_row(options.whom.words), usage::brief(cli::all_row(options.whom.takes_several)),
           usage::brief(
               {"--for", usage::duration(options.request.time), "For this long (default: until --release)"}),
           usage::brief({"--release", usage::flag(options.request.release), "Allow sleeps again"}),
           usage::brief(cli::user_row(options.whom.user)), usage::brief(cli::json_row(options.output.json)),
           usage::brief(cli::quiet_row(options.output.quiet))}}},
        k_examples,
        k_statuses};
}

/// Returns the problem of options that are each valid alone, or nothing.
std::string problem(const InhibitOptions& options, bool has_command) {
    if (options.request.release && options.request.time) return "--release and --for cannot be used together";
    const bool has_target = !options.whom.words.empty() || options.whom.takes_several;
    if (!has_command) return has_target ? "" : "PID or COMMAND is missing";
    if (has_target) return "COMMAND cannot be used together with PID or --all";
    if (options.request.release) return "--release cannot be used with COMMAND";
    if (options.whom.user) return "--user cannot be used with COMMAND";
    return options.output.json ? "--json cannot be used with COMMAND" : "";
}

/// Becomes the command, whose agents inhibit sleeps from their start. Returns the exit status if that fails.
int execute(const model::InhibitRequest& request, char** command) {
    const char* path = std::getenv("PATH");
    const auto program = cli::find_program(command[0], path ? path : cli::k_default_path);
    if (const auto* const refusal = std::get_if<cli::Refusal>(&program)) {
        cli::print_error(fmt::format("gpu-inhibit: {}\n", printable(refusal->message)));
        return refusal->exit_status;
    }
    constexpr Milliseconds k_shortest{1}; // 0 stands for no limit
    const auto time = request.time ? std::max(*request.time, k_shortest) : Milliseconds(0);
    ::setenv(model::environment::k_inhibit, std::to_string(time.count()).c_str(), 1);
    ::execvp(command[0], command);
    const int reason = errno;
    cli::print_error(
        printable(fmt::format("gpu-inhibit: cannot run {}: {}", command[0], std::strerror(reason))) + '\n');
    return reason == ENOENT ? cli::k_status_not_found : cli::k_status_cannot_execute;
}

} // namespace

int main(int argc, char** argv) {
    InhibitOptions options;
    char** const end = argv + argc;
    char** const marker =
        std::find_if(argv, end, [](const char* word) { return std::string_view(word) == "--"; });
    const bool has_command = marker != end && marker + 1 != end;
    if (const auto status = cli::parse(table_of(options), static_cast<int>(marker - argv), argv))
        return *status;
    if (const auto text = problem(options, has_command); !text.empty())
        return cli::usage_error("gpu-inhibit", text, options.output.json);
    if (has_command) return execute(options.request, marker + 1);
    return cli::tell_selected("gpu-inhibit", options.whom, options.request, options.output,
                              cli::render_inhibition);
}
