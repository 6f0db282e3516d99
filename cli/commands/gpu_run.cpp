// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-run: starts a command with the agent inside, by preloading it.

#include "base/text.hpp"
#include "cli/command_run.hpp"
#include "cli/http/door.hpp"
#include "cli/preload.hpp"
#include "cli/show/output.hpp"
#include "model/allocation_rules.hpp"
#include "model/environment.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

using namespace gpu_sleep;

namespace {

namespace environment = model::environment;
constexpr const char* k_examples =
    "  gpu-run --name llama -- python3 serve.py  then: gpu-sleep llama\n"
    "  gpu-run --on-touch wake -- ./serve        its GPU work wakes it\n"
    "  gpu-run --idle 15m -- python3 serve.py    sleeps after 15 minutes unused\n"
    "  gpu-enable user                           loads the agent into all you start\n";
constexpr const char* k_exit_statuses =
    "that of COMMAND; 1 if the agent is missing or --need finds no room, 2 for wrong usage or rules, an "
    "address of --http that is taken, or if the agent cannot be loaded into COMMAND, 126 if COMMAND cannot "
    "be executed, 127 if there is no such command.";

/// The options before the command.
struct RunOptions {
    std::optional<std::string> name, group, tag, rules;
    std::optional<Bytes> min_size, retain, host_budget, need;
    std::vector<std::string> live_bytes;
    std::optional<model::OnTouch> on_touch;
    std::optional<model::GateMode> gate;
    std::optional<Milliseconds> touch_limit, min_awake, stop_grace, idle;
    std::optional<Milliseconds> wait; ///< for room
    bool deep = false;                ///< when it is idle
    cli::TypedStores stores;
    bool share = false, make_room = false;
    std::string on_stop; ///< empty for the default
    cli::http::DoorOptions door;
    bool prepare = false, keep_gil = false, no_capture = false, audit = false;
};

std::string rules_problem(const std::string& text) {
    const auto rules = model::AllocationRules::parse(text);
    return rules ? std::string() : rules.error().message;
}

/// Takes a text into `value` unless `problem` has something against it, which is returned.
usage::ReadText reader(std::optional<std::string>& value, std::string (*problem)(const std::string&)) {
    return [&value, problem](const std::string& text) {
        value = text;
        return problem(text);
    };
}

usage::Table table_of(RunOptions& options) {
    const auto set_on_stop = [&options](const std::string& word) { options.on_stop = word; };
    return {
        "gpu-run",
        "Starts COMMAND so that gpu-sleep can put it to sleep.",
        {"[OPTION]... [--] COMMAND [ARGUMENT]..."},
        {{"The command and its name",
          {{"COMMAND", {}, "The command and its arguments, after -- or after the last option"},
           usage::brief({"--name", usage::text("NAME", reader(options.name, cli::name_problem)),
                         "Name for gpu-sleep, gpu-wake and other commands"}),
           {"--group", usage::text("NAME", reader(options.group, cli::name_problem)),
            "Put the process in this group; gpu-sleep --group acts on all of it together"}}},
         {"When it sleeps and wakes",
          {usage::brief(cli::on_touch_row(options.on_touch, " (default: wait)")),
           cli::gate_row(options.gate),
           cli::touch_limit_row(options.touch_limit),
           usage::brief(
               {"--idle", usage::duration(options.idle),
                "Put the process to sleep after this long without GPU work; its next GPU work wakes it"}),
           {"--deep", usage::flag(options.deep), "With --idle: also free memory that the CUDA driver holds"},
           {"--store", cli::store_row(options.stores).value,
            "With --idle: where to keep contents, host (default) or file, also by tag, as in weights=file"},
           {"--dir", cli::dir_row(options.stores).value,
            "With --idle: keep contents in compressed files in DIR"},
           usage::brief({"--on-stop", usage::choice("stop|sleep", set_on_stop),
                         "On SIGTSTP (Ctrl-Z): stop the process (stop, the default), or put it to sleep "
                         "first (sleep)"}),
           {"--stop-grace", usage::duration(options.stop_grace),
            "With --on-stop sleep: delay the stop at most this long (default: 5 s)"}}},
         {"Sharing a GPU",
          {usage::brief({"--share", usage::flag(options.share),
                         "Take turns on the GPU with the other programs that were started with --share"}),
           {"--make-room", usage::flag(options.make_room),
            "If GPU memory is short for a wake, put this user's least recently used processes to sleep"},
           usage::brief({"--need", usage::size(options.need),
                         "Before the start, put processes to sleep until this much GPU memory is free"}),
           cli::wait_row(options.wait, "0 s, and up to 30 s while only --min-awake prevents it"),
           cli::min_awake_row(options.min_awake, "--make-room and --need")}},
         {"Control by HTTP", cli::http::rows(options.door)},
         {"Host memory",
          {{"--retain", usage::size(options.retain),
            "Host memory that may keep copies after a wake, for a faster next sleep (default: what the host "
            "has room for)"},
           {"--host-budget", usage::size(options.host_budget),
            "Limit of host memory for contents of all processes of this user (default: none)"},
           {"--live-bytes", usage::list("SIZE|TAG=SIZE,...", options.live_bytes),
            "Place this much of a tag's GPU memory in host memory, which is slower"},
           {"--prepare", usage::flag(options.prepare),
            "Allocate host memory in the background, for a faster first sleep"}}},
         {"What is intercepted",
          {{"--tag", usage::text("TAG", reader(options.tag, cli::tag_problem)),
            "Tag of the program's allocations (default: the tag 'default')"},
           {"--min-size", usage::size(options.min_size),
            "Do not intercept smaller allocations: they stay on the GPU"},
           {"--rules", usage::text("RULE;...", reader(options.rules, rules_problem)),
            "Rules that say which allocations to intercept, and their tags"},
           {"--no-capture", usage::flag(options.no_capture),
            "Load the agent, but intercept none of the program's own allocations"},
           {"--audit", usage::flag(options.audit), "Also intercept libraries that LD_PRELOAD does not reach"},
           {"--keep-gil", usage::flag(options.keep_gil),
            "Keep Python's lock (the GIL) while a Python thread waits to launch or copy"}}}},
        k_examples,
        k_exit_statuses,
        {},
        {{"--deep", "--idle"}, {"--store", "--idle"}, {"--dir", "--idle"}, {"--wait", "--need"}},
        {{"--no-capture", "--tag"}, // with the next three: what they say cannot be known then
         {"--no-capture", "--min-size"},
         {"--no-capture", "--rules"},
         {"--no-capture", "--idle"}}};
}

/// Whether the word after `word` is its value.
bool takes_next(const usage::Table& table, const std::string& word) {
    const auto is_meant = [&word](const usage::Row& row) {
        return row.value.read &&
               fmt::format(",{},", row.names).find(fmt::format(",{},", word)) != std::string::npos;
    };
    return std::ranges::any_of(
        table.groups, [&](const usage::Group& group) { return std::ranges::any_of(group.rows, is_meant); });
}

/// The index in `words` at which the command begins: after "--", or at the first word that is neither an
/// option nor an option's value.
std::size_t find_command(const usage::Table& table, const std::vector<std::string>& words) {
    for (std::size_t i = 1; i < words.size(); ++i) {
        const auto& word = words[i];
        if (word == "--") return i + 1;
        if (word.size() < 2 || word.front() != '-') return i;
        if (takes_next(table, word)) ++i;
    }
    return words.size();
}

/// The agent's part of the environment.
std::map<const char*, std::string> agent_environment(const RunOptions& options) {
    std::map<const char*, std::string> variables{{environment::k_capture, options.no_capture ? "0" : "1"}};
    if (options.name) variables[environment::k_name] = *options.name;
    if (options.group) variables[environment::k_group] = *options.group;
    if (options.tag) variables[environment::k_tag] = *options.tag;
    if (options.min_size) variables[environment::k_min_size] = std::to_string(*options.min_size);
    if (options.on_touch) variables[environment::k_on_touch] = model::to_string(*options.on_touch);
    if (options.gate) variables[environment::k_gate] = model::to_string(*options.gate);
    if (options.touch_limit)
        variables[environment::k_touch_limit] = std::to_string(options.touch_limit->count());
    if (options.make_room) variables[environment::k_make_room] = "1";
    if (options.min_awake) variables[environment::k_min_awake] = std::to_string(options.min_awake->count());
    if (options.idle) variables[environment::k_idle] = std::to_string(options.idle->count());
    if (options.deep) variables[environment::k_idle_deep] = "1";
    if (!options.stores.stores.empty())
        variables[environment::k_idle_store] = fmt::format("{}", fmt::join(options.stores.stores, ","));
    if (!options.stores.directory.empty())
        variables[environment::k_idle_directory] = options.stores.directory;
    if (!options.on_stop.empty()) variables[environment::k_on_stop] = options.on_stop;
    if (options.stop_grace)
        variables[environment::k_stop_grace] = std::to_string(options.stop_grace->count());
    if (options.retain) variables[environment::k_retain] = std::to_string(*options.retain);
    if (options.host_budget) variables[environment::k_host_budget] = std::to_string(*options.host_budget);
    if (!options.live_bytes.empty())
        variables[environment::k_live_bytes] = fmt::format("{}", fmt::join(options.live_bytes, ","));
    if (options.prepare) variables[environment::k_prepare] = "10";
    if (options.keep_gil) variables[environment::k_release_gil] = "0";
    if (options.rules) variables[environment::k_rules] = *options.rules;
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

/// Opens a door to the program that this process becomes, in `directory`. Errors: those of start_beside().
Result<void> open_door(const RunOptions& options, const std::filesystem::path& directory) {
    auto door = options.door;
    const bool is_chosen = !door.address->is_unix() && door.address->endpoint.port == 0;
    if (is_chosen) // here, so that a door which is started again has the same port
        if (const auto socket = cli::http::listen_on(*door.address); !socket) return socket.error();
    auto words = cli::http::words_of(door);
    words.insert(words.begin(),
                 {(directory / "gpu-sleep-http").native(), "--tree", std::to_string(::getpid())});
    if (options.make_room) words.emplace_back("--make-room");
    if (options.make_room && options.min_awake)
        words.push_back(fmt::format("--min-awake={}ms", options.min_awake->count()));
    GPU_SLEEP_TRY(cli::http::start_beside(std::move(words)));
    if (is_chosen) cli::print_error(fmt::format("gpu-run: listening on {}\n", to_string(*door.address)));
    return {};
}

/// Prepares the environment, and starts `command`. Returns the exit status if that fails.
int run(const RunOptions& options, std::vector<std::string> command) {
    const char* path = std::getenv("PATH");
    auto program = cli::find_program(command.front(), path ? path : cli::k_default_path);
    if (const auto* refusal = std::get_if<cli::Refusal>(&program))
        return print_error(refusal->message, refusal->exit_status);
    auto file = std::get<std::string>(std::move(program));
    if (file.find('/') == std::string::npos) file.insert(0, "./");
    if (const auto refusal = cli::check_preloadable(file))
        return print_error(refusal->message, refusal->exit_status);
    std::error_code failure;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
    const auto agent = cli::find_library(self.parent_path().native(), cli::k_agent_library);
    if (!agent) return print_error(agent.error().message, exit_status::failed_awake);
    const auto audit =
        options.audit ? cli::find_library(self.parent_path().native(), cli::k_audit_library) : std::string();
    if (!audit) return print_error(audit.error().message, exit_status::failed_awake);
    const auto variables = agent_environment(options);

    if (options.door.address)
        if (const auto opened = open_door(options, self.parent_path()); !opened)
            return print_error(opened.error().message, traits(opened.error().code).exit_status);

    if (options.need) {
        const auto min_awake = options.min_awake.value_or(model::WakeRequest().min_awake);
        const int status = cli::make_room_for_command("gpu-run", options.name.value_or("gpu-run"),
                                                      *options.need, min_awake, options.wait);
        if (status != exit_status::done) return status;
    }

    const char* disabled = std::getenv(environment::k_disable);
    if (disabled && environment::disables(disabled))
        cli::print_error(
            "gpu-run: the program cannot be put to sleep: GPU_SLEEP_DISABLE turns the agent off\n");
    const char* audited = std::getenv("LD_AUDIT");
    if (options.audit) ::setenv("LD_AUDIT", cli::with_audit(*audit, audited ? audited : "").c_str(), 1);
    const char* preloaded = std::getenv("LD_PRELOAD");
    ::setenv("LD_PRELOAD", cli::with_agent(*agent, preloaded ? preloaded : "").c_str(), 1);
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    return execute(file, std::move(command));
}

/// Puts in what follows from other options. Returns what is wrong with them, or nothing.
std::string complete(RunOptions& options) {
    if (options.share && options.on_touch.value_or(model::OnTouch::wake) != model::OnTouch::wake)
        return "--share means --on-touch wake, and excludes other values of it";
    options.make_room |= options.share;
    if (options.share) options.on_touch = model::OnTouch::wake;
    if (auto text = cli::touch_problem(options.on_touch, options.touch_limit); !text.empty()) return text;
    if (auto text = cli::http::complete(options.door); !text.empty()) return text;
    if (options.min_awake && !options.make_room && !options.need)
        return "--min-awake can be used only with --share, --make-room or --need";
    if (options.idle && options.idle->count() == 0)
        return "--idle: the time must be more than 0, such as 15m";
    model::Placement placement;
    if (auto text = cli::read_stores(options.stores, placement); !text.empty()) return text;
    if (options.stores.stores.empty() && placement.store_is_named) options.stores.stores = {"file"};
    options.stores.directory = placement.directory; // absolute
    if (const auto opened = open_private_directory(AT_FDCWD, placement.directory, ::geteuid());
        !placement.directory.empty() && !opened && errno == EPERM)
        return "--dir: " + placement.directory + " is not a directory that only you can enter";
    const auto sizes = model::parse_live_bytes(fmt::format("{}", fmt::join(options.live_bytes, ",")),
                                               options.tag.value_or(std::string(model::k_default_tag)));
    if (!options.live_bytes.empty() && !sizes) return "--live-bytes: " + sizes.error().message;
    return options.stop_grace && options.on_stop != "sleep" ? "--stop-grace needs --on-stop sleep" : "";
}

} // namespace

int main(int argc, char** argv) {
    RunOptions options;
    auto table = table_of(options);
    const std::vector<std::string> words(argv, argv + argc);
    const auto begin = find_command(table, words);
    const bool has_marker = begin > 1 && begin <= words.size() && words[begin - 1] == "--";
    const auto own = static_cast<int>(std::min(begin, words.size())) - (has_marker ? 1 : 0);
    if (const auto status = cli::parse(std::move(table), own, argv)) return *status;
    std::vector<std::string> command(
        words.begin() + static_cast<std::ptrdiff_t>(std::min(begin, words.size())), words.end());
    const auto refuse = [](const std::string& text) { return cli::usage_error("gpu-run", text, false); };
    if (command.empty()) return refuse("COMMAND is missing");
    const auto text = complete(options);
    return text.empty() ? run(options, std::move(command)) : refuse(text);
}
