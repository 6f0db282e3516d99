// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-run: starts a command with the agent inside, by preloading it.

#include "base/text.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cli/preload.hpp"
#include "cli/program_file.hpp"
#include "cli/rules_file.hpp"
#include "model/environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

using namespace gpu_sleep;

namespace {

namespace environment = model::environment;

constexpr const char* k_examples =
    "  gpu-run -- python3 serve.py                     gpu-sleep can then put it to sleep\n"
    "  gpu-run --name llama -- python3 serve.py        by name: gpu-sleep llama\n"
    "  gpu-run --on-touch wake -- python3 serve.py     asleep until it uses the GPU again\n"
    "  gpu-run --rules rules.json -- ./train           which allocations are intercepted, their tags\n";
constexpr const char* k_exit_statuses =
    "\nExit status: that of COMMAND; 1 if the agent is missing, 2 for wrong usage or rules or if the agent\n"
    "cannot be loaded into COMMAND, 126 if COMMAND cannot be executed, 127 if there is no such command.";

/// What was typed before the command.
struct Options {
    std::optional<std::string> name, group, tag;
    std::string rules_file; ///< empty for none
    std::optional<Bytes> min_size, retain;
    std::optional<model::OnTouch> on_touch;
    std::optional<model::GateMode> gate;
    std::optional<Milliseconds> touch_limit;
    bool prepare = false, release_gil = false, keep_gil = false, no_capture = false, audit = false;
};

/// Takes a text into `value` unless `problem` has something against it, which is returned.
cli::ReadText reader(std::optional<std::string>& value, std::string (*problem)(const std::string&)) {
    return [&value, problem](const std::string& text) {
        value = text;
        return problem(text);
    };
}

void add_options(CLI::App& app, Options& options) {
    cli::add_value(app, "--name", "NAME", reader(options.name, cli::name_problem),
                   "Name by which gpu-sleep, gpu-wake and gpu-ps find the process");
    cli::add_value(app, "--group", "NAME", reader(options.group, cli::name_problem),
                   "Group of processes that gpu-sleep --group NAME puts to sleep together");
    auto* tag = cli::add_value(app, "--tag", "TAG", reader(options.tag, cli::tag_problem),
                               "Tag of all intercepted allocations (default: default)");
    auto* min_size =
        cli::add_size(app, "--min-size", options.min_size, "Leave smaller allocations to the driver");
    auto* rules = cli::add_path(
        app, "--rules", "FILE", options.rules_file,
        "JSON file that says which allocations are intercepted, and their tags; see the manual page");
    cli::add_gate(app, options.on_touch, options.gate, options.touch_limit, "default: wait");
    cli::add_size(app, "--retain", options.retain,
                  "Host memory that may keep contents while awake, so that the next sleep copies only what\n"
                  "changed; 0 for none (default: what the host has room for)");
    cli::add_flag(app, "--prepare", options.prepare,
                  "Make host memory ready for the first sleep once the program's memory has not changed for\n"
                  "10 s; for hosts on which a first sleep takes long");
    auto* release =
        cli::add_flag(app, "--release-gil", options.release_gil,
                      "A Python thread that waits to launch or copy releases Python's lock (the default)");
    cli::add_flag(app, "--keep-gil", options.keep_gil, "It keeps Python's lock")->excludes(release);
    cli::add_flag(app, "--no-capture", options.no_capture,
                  "Load the agent, but leave all of the program's own allocations to the driver")
        ->excludes(tag)
        ->excludes(min_size)
        ->excludes(rules);
    cli::add_flag(app, "--audit", options.audit,
                  "Also intercept libraries that preloading does not reach; see the manual page");
}

/// The index in `words` at which the command begins: after "--", or at the first word that is neither an
/// option nor an option's value.
std::size_t find_command(const CLI::App& app, const std::vector<std::string>& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
        const auto& word = words[i];
        if (word == "--") return i + 1;
        if (word.size() < 2 || word.front() != '-') return i;
        const auto* option = app.get_option_no_throw(word);
        if (option && option->get_items_expected_min() > 0) ++i; // its value is the next word
    }
    return words.size();
}

/// The agent's part of the environment.
Result<std::map<const char*, std::string>> agent_environment(const Options& options) {
    std::map<const char*, std::string> variables{{environment::k_capture, options.no_capture ? "0" : "1"}};
    if (options.name) variables[environment::k_name] = *options.name;
    if (options.group) variables[environment::k_group] = *options.group;
    if (options.tag) variables[environment::k_tag] = *options.tag;
    if (options.min_size) variables[environment::k_min_size] = std::to_string(*options.min_size);
    if (options.on_touch) variables[environment::k_on_touch] = model::to_string(*options.on_touch);
    if (options.gate) variables[environment::k_gate] = model::to_string(*options.gate);
    if (options.touch_limit)
        variables[environment::k_touch_limit] = std::to_string(options.touch_limit->count());
    if (options.retain) variables[environment::k_retain] = std::to_string(*options.retain);
    if (options.prepare) variables[environment::k_prepare] = "10";
    if (options.release_gil || options.keep_gil)
        variables[environment::k_release_gil] = options.release_gil ? "1" : "0";
    if (options.rules_file.empty()) return variables;
    const auto rules = cli::read_rules_file(options.rules_file);
    if (!rules) return rules.error();
    variables[environment::k_rules] = rules->text();
    return variables;
}

int print_error(std::string_view message, int status) {
    cli::print_error(fmt::format("gpu-run: {}\n", printable(message)));
    return status;
}

/// Becomes the command. Returns the exit status if that fails.
int execute(const std::string& file, std::vector<std::string> words) {
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execvp(file.c_str(), arguments.data()); // like a shell, runs a script without #! by /bin/sh
    const int reason = errno;
    return print_error(fmt::format("cannot run {}: {}", file, std::strerror(reason)),
                       reason == ENOENT ? cli::k_status_not_found : cli::k_status_cannot_execute);
}

/// Prepares the environment, and starts `command`. Returns the exit status if that fails.
int run(const Options& options, std::vector<std::string> command) {
    constexpr const char* k_default_path = "/bin:/usr/bin"; // as execvp has it
    const char* path = std::getenv("PATH");
    auto program = cli::find_program(command.front(), path ? path : k_default_path);
    if (const auto* refusal = std::get_if<cli::Refusal>(&program))
        return print_error(refusal->message, refusal->exit_status);
    auto file = std::get<std::string>(std::move(program));
    if (file.find('/') == std::string::npos) file.insert(0, "./");
    if (const auto refusal = cli::check_preloadable(file))
        return print_error(refusal->message, refusal->exit_status);
    std::error_code failure;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
    const auto agent = cli::find_agent(self.parent_path().native());
    if (!agent) return print_error(agent.error().message, exit_status::failed_awake);
    const auto audit = options.audit ? cli::find_audit(self.parent_path().native()) : std::string();
    if (!audit) return print_error(audit.error().message, exit_status::failed_awake);
    const auto variables = agent_environment(options);
    if (!variables) return cli::usage_error("gpu-run", "--rules: " + variables.error().message, false);

    const char* audited = std::getenv("LD_AUDIT");
    if (options.audit) ::setenv("LD_AUDIT", cli::with_audit(*audit, audited ? audited : "").c_str(), 1);
    const char* preloaded = std::getenv("LD_PRELOAD");
    ::setenv("LD_PRELOAD", cli::with_agent(*agent, preloaded ? preloaded : "").c_str(), 1);
    for (const auto& [name, value] : *variables) ::setenv(name, value.c_str(), 1);
    return execute(file, std::move(command));
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("Starts COMMAND so that gpu-sleep can put it to sleep: with the agent inside, which\n"
                 "intercepts its GPU allocations. Nothing else about it changes.",
                 "gpu-run");
    Options options;
    cli::add_basics(app, k_examples, k_exit_statuses);
    add_options(app, options);
    std::vector<std::string> command; // never parsed by CLI11: whatever follows belongs to the command
    app.add_option("COMMAND", command, "The command and its arguments, after -- or after the last option")
        ->type_name("");

    const std::vector<std::string> words(argv, argv + argc);
    const auto begin = find_command(app, words);
    const bool has_marker = begin > 1 && begin <= words.size() && words[begin - 1] == "--";
    const auto own = static_cast<int>(std::min(begin, words.size())) - (has_marker ? 1 : 0);
    if (const auto status = cli::parse(app, own, argv)) return *status;
    command.assign(words.begin() + static_cast<std::ptrdiff_t>(std::min(begin, words.size())), words.end());
    if (command.empty()) return cli::usage_error("gpu-run", "COMMAND is missing", false);
    if (const auto problem = cli::touch_problem(options.on_touch, options.touch_limit); !problem.empty())
        return cli::usage_error("gpu-run", problem, false);
    return run(options, std::move(command));
}
