// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Shared options.

#include "cli/options.hpp"

#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/process_info.hpp"
#include "cli/render.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

namespace gpu_sleep::cli {
namespace {

/// Whether `word` is one of those that `words` separates by '|'.
bool is_one_of(std::string_view word, std::string_view words) {
    while (!words.empty()) {
        const auto end = std::min(words.find('|'), words.size());
        if (words.substr(0, end) == word) return true;
        words.remove_prefix(std::min(end + 1, words.size()));
    }
    return false;
}

/// "--output" of "--output,-o".
std::string long_name(const std::string& names) {
    return names.substr(0, names.find(','));
}

/// Reads `text` by `parse`, which gives a Result, into `value`.
template <class Parse, class Value>
std::string read_into(Value& value, const std::string& text, Parse&& parse) {
    const auto read = parse(text);
    if (!read) return read.error().message;
    value = *read;
    return {};
}

// ---- What is wrong with a command line, in our words whatever the version of CLI11
// ----------------------------------------------------------------------------------------------------

/// `app` and its subcommands.
std::vector<CLI::App*> all_of(CLI::App& app) {
    auto apps = app.get_subcommands([](CLI::App*) { return true; });
    apps.insert(apps.begin(), &app);
    return apps;
}

const CLI::Option* find_option(CLI::App& app, const std::string& name) {
    for (const auto* each : all_of(app))
        if (const auto* option = each->get_option_no_throw(name)) return option;
    return nullptr;
}

/// Empty, or a list of nothing.
bool is_nothing(std::string_view value) {
    return value.find_first_not_of(',') == std::string_view::npos;
}

/// What is wrong with the options of a command line, one by one, or nothing: CLI11 takes the next word for
/// the value of "--option=", and reads whatever it likes out of an empty one.
std::string problem_with_values(CLI::App& app, int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--") break;
        if (word.size() < 2 || word.front() != '-') continue;
        const auto equals = word.starts_with("--") ? word.find('=') : std::string::npos;
        const auto name = word.substr(0, equals);
        const auto* option = find_option(app, name);
        if (!option) continue;
        const bool takes_value = option->get_items_expected_min() > 0;
        const bool has_value = equals != std::string::npos;
        if (has_value && !takes_value && option->get_disable_flag_override()) return name + " takes no value";
        if (has_value && is_nothing(std::string_view(word).substr(equals + 1))) return name + " has no value";
        if (has_value || !takes_value) continue;
        if (++i >= argc || is_nothing(argv[i])) return name + " has no value";
    }
    return {};
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App*) { return true; });
}

/// "a, b or c".
std::string listed(const std::vector<const CLI::App*>& commands) {
    std::string text;
    for (std::size_t i = 0; i < commands.size(); ++i)
        text += (i == 0 ? "" : i + 1 == commands.size() ? " or " : ", ") + commands[i]->get_name();
    return text;
}

/// The first word that nobody wants, an option if there is one among them, or nothing.
std::string unwanted_word(const CLI::App& app) {
    const auto words = app.remaining(true);
    if (words.empty()) return {};
    const auto is_option = [](const std::string& word) { return word.size() > 1 && word.front() == '-'; };
    const auto option = std::find_if(words.begin(), words.end(), is_option);
    const auto commands = subcommands_of(app);
    if (option == words.end() && !commands.empty() && app.get_subcommands().empty())
        return fmt::format("there is no subcommand '{}', but {}", words.front(), listed(commands));
    if (option == words.end()) return fmt::format("'{}' is one word too many", words.front());
    return fmt::format("there is no option {}", option->substr(0, option->find('=')));
}

std::string missing_word(CLI::App& app) {
    for (const auto* each : all_of(app)) {
        if (each != &app && !each->parsed()) continue;
        for (const auto* option : each->get_options())
            if (option->get_required() && option->count() == 0) return option->get_name() + " is missing";
    }
    return "a subcommand is missing: " + listed(subcommands_of(app));
}

std::string excluded_option(CLI::App& app) {
    for (const auto* each : all_of(app))
        for (const auto* option : each->get_options())
            for (const auto* other : option->get_excludes())
                if (option->count() > 0 && other->count() > 0)
                    return fmt::format("{} and {} exclude each other", option->get_name(), other->get_name());
    return {};
}

std::string repeated_option(CLI::App& app) {
    for (const auto* each : all_of(app))
        for (const auto* option : each->get_options())
            if (option->count() > static_cast<std::size_t>(std::max(1, option->get_items_expected_max())))
                return option->get_name() + " is given twice";
    return {};
}

std::string words_for(CLI::App& app, const CLI::Error& error) {
    std::string words;
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) words = repeated_option(app);
    if (dynamic_cast<const CLI::ExcludesError*>(&error)) words = excluded_option(app);
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) words = unwanted_word(app);
    if (dynamic_cast<const CLI::RequiredError*>(&error)) {
        words = unwanted_word(app);
        if (words.empty()) words = missing_word(app);
    }
    return words.empty() ? error.what() : words;
}

/// Whether the answer is to be JSON, as far as a command line tells that was not understood.
bool wants_json(const CLI::App& app, int argc, const char* const* argv) {
    const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
    const bool has_json = app.get_option_no_throw("--json") ||
                          std::any_of(commands.begin(), commands.end(), [](const CLI::App* command) {
                              return command->get_option_no_throw("--json");
                          });
    const auto is = [](std::string_view text) { return [=](const char* word) { return word == text; }; };
    const auto* const end = std::find_if(argv, argv + argc, is("--"));
    return has_json && std::find_if(argv, end, is("--json")) != end;
}

} // namespace

void add_basics(CLI::App& app, const std::string& examples, const std::string& exit_statuses) {
    app.set_version_flag("--version", app.get_name() + " " GPU_SLEEP_VERSION, "Print the version and exit")
        ->disable_flag_override();
    app.footer("Examples:\n" + examples + exit_statuses);
}

CLI::Option* add_value(CLI::App& app, const std::string& name, const std::string& type, const ReadText& read,
                       const std::string& help) {
    const auto take = [read, name](const std::string& text) {
        const auto problem = read(text);
        if (!problem.empty()) throw CLI::ValidationError(fmt::format("{}: {}", long_name(name), problem));
    };
    return app.add_option_function<std::string>(name, take, help)->type_name(type);
}

CLI::Option* add_path(CLI::App& app, const std::string& name, const std::string& type, std::string& path,
                      const std::string& help) {
    const auto read = [&path](const std::string& text) {
        path = text;
        return std::string();
    };
    return add_value(app, name, type, read, help);
}

CLI::Option* add_word(CLI::App& app, const std::string& name, std::string& word, const std::string& wanted,
                      const std::string& help) {
    const auto take = [&word, name, wanted](const std::string& text) {
        if (text.empty())
            throw CLI::ValidationError(fmt::format("{} is empty; it should be {}", name, wanted));
        word = text;
    };
    return app.add_option_function<std::string>(name, take, help)->type_name("");
}

CLI::Option* add_flag(CLI::App& app, const std::string& name, bool& value, const std::string& help) {
    return app.add_flag(name, value, help)->disable_flag_override();
}

CLI::Option* add_target(CLI::App& app, std::string& target) {
    return add_word(app, "PID", target, "a process id, or the name that a process has",
                    "Process id, or the name of the program; the id of a parent without an agent selects\n"
                    "its descendants that have one");
}

void add_targets(CLI::App& app, std::vector<std::string>& targets, bool& takes_all) {
    const auto take = [&targets](const std::vector<std::string>& words) {
        if (std::find(words.begin(), words.end(), std::string()) != words.end())
            throw CLI::ValidationError(
                "PID is empty; it should be a process id, or the name that a process has");
        targets = words;
    };
    app.add_option_function<std::vector<std::string>>(
           "PID", take,
           "Process ids, or the names of programs; the id of a parent without an agent selects its\n"
           "descendants that have one")
        ->type_name("...");
    add_flag(app, "--all", takes_all,
             "Without PID, all processes with an agent that the caller may ask; with the name of a program,\n"
             "all that run it");
}

void add_selection(CLI::App& app, Selection& selection) {
    add_flag(app, "--tree", selection.tree,
             "PID and its descendants, together: all prepare before any goes on, and all go back if one\n"
             "cannot");
    const auto read = [&selection](const std::string& name) {
        selection.group = name;
        return name_problem(name);
    };
    add_value(app, "--group", "NAME", read,
              "Together, in place of PID: the processes that gpu-run --group NAME has started");
}

std::string selection_problem(const Selection& selection, const std::vector<std::string>& targets,
                              bool takes_all) {
    if (selection.tree && !selection.group.empty()) return "--tree and --group exclude each other";
    if (selection.is_joint() && takes_all) return "--all goes with neither --tree nor --group";
    if (!selection.group.empty() && !targets.empty()) return "--group takes the place of PID";
    if (selection.tree && targets.size() > 1) return "--tree is for one PID";
    return targets.empty() && selection.group.empty() && !takes_all ? "PID is missing" : "";
}

std::string name_problem(const std::string& name) {
    if (model::is_valid_name(name)) return {};
    return fmt::format("'{}' is not {}", name, model::k_name_rule);
}

std::string tag_problem(const std::string& tag) {
    if (model::is_valid_tag(tag)) return {};
    return fmt::format("'{}' is not a tag: 1 to {} letters, digits, '_', '-', '.' and ':'", tag,
                       model::k_max_tag_length);
}

void add_user(CLI::App& app, std::optional<uid_t>& user) {
    const auto read = [&user](const std::string& text) { return read_into(user, text, parse_user); };
    add_value(app, "--user", "NAME|UID", read, "Only processes of this user (default: all)");
}

void add_tags(CLI::App& app, const std::string& name, std::vector<std::string>& tags,
              const std::string& help) {
    app.add_option(name, tags, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("TAG[,TAG...]")
        ->check(tag_problem);
}

void warn_of_unit(const CLI::App& app, std::string_view name, std::string_view text) {
    if (const auto warning = unit_warning(text); !warning.empty())
        print_error(fmt::format("{}: {}: {}\n", app.get_name(), name, warning));
}

void add_duration(CLI::App& app, const std::string& name, Milliseconds& value, const std::string& help) {
    const auto read = [&app, &value, name](const std::string& text) {
        auto problem = read_into(value, text, parse_duration);
        if (problem.empty()) warn_of_unit(app, name, text);
        return problem;
    };
    const auto shown = format_seconds(std::chrono::duration<double>(value).count());
    add_value(app, name, "DURATION", read, fmt::format("{} (default: {})", help, shown));
}

CLI::Option* add_limit(CLI::App& app, const std::string& name, std::optional<Milliseconds>& value,
                       const std::string& help) {
    const auto read = [&app, &value, name](const std::string& text) {
        auto problem = read_into(value, text, parse_duration);
        if (problem.empty()) warn_of_unit(app, name, text);
        return problem;
    };
    return add_value(app, name, "DURATION", read, help);
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::optional<Bytes>& value,
                      const std::string& help) {
    const auto read = [&value](const std::string& text) { return read_into(value, text, parse_bytes); };
    return add_value(app, name, "SIZE", read, help);
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, const std::string& words,
                        const std::function<void(const std::string&)>& assign, const std::string& help) {
    const auto read = [words, assign](const std::string& word) {
        if (!is_one_of(word, words)) return fmt::format("'{}' is not one of {}", word, words);
        assign(word);
        return std::string();
    };
    return add_value(app, name, words, read, help);
}

void add_gate(CLI::App& app, std::optional<model::OnTouch>& on_touch, std::optional<model::GateMode>& gate,
              std::optional<Milliseconds>& touch_limit, const std::string& default_words) {
    add_choice(
        app, "--on-touch", "wait|wake|fail",
        [&on_touch](const std::string& word) { on_touch = model::parse_on_touch(word); },
        fmt::format("GPU work while the process is asleep waits, wakes the process, or fails ({})",
                    default_words));
    add_choice(
        app, "--gate", "shut|checked",
        [&gate](const std::string& word) { gate = model::parse_gate_mode(word); },
        "While a part is asleep, hold all work (shut), or only work that names a sleeping address\n"
        "(checked; default: shut, unless the program has declared the part separable)");
    add_limit(app, "--touch-limit", touch_limit,
              "How long work that wakes the process may wait for GPU memory (default: no limit)");
}

void add_min_awake(CLI::App& app, std::optional<Milliseconds>& min_awake) {
    add_limit(app, "--min-awake", min_awake,
              "Leave alone what was woken less than so long ago (default: 30 s)");
}

std::string touch_problem(std::optional<model::OnTouch> on_touch, std::optional<Milliseconds> touch_limit) {
    if (!touch_limit || !on_touch || *on_touch == model::OnTouch::wake) return {};
    return "--touch-limit is for work that wakes the process: --on-touch wake";
}

void add_output(CLI::App& app, OutputOptions& output, bool quiet_too) {
    add_flag(app, "--json", output.json, "Print the result as JSON, sizes in bytes, times in seconds");
    if (quiet_too)
        add_flag(app, "--quiet,-q", output.quiet, "Print neither progress nor result, only errors");
}

int usage_error(std::string_view program, const std::string& problem, bool json) {
    const auto error = make_error(ErrorCode::invalid_argument, "{}; see {} --help", problem, program);
    print_error(render_error(program, "", error));
    const auto text = json ? to_json(program, error) + '\n' : std::string();
    [[maybe_unused]] const int written = print_result(program, text); // it is wrong usage in any case
    return exit_status::usage;
}

namespace {

/// Where standard descriptors are closed: nothing else gets their numbers, and writing to them fails.
void keep_standard_descriptors() {
    int fd = -1;
    do {
        fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) ::close(fd);
}

} // namespace

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
    keep_standard_descriptors();
    for (auto* each : all_of(app))
        if (auto* help = each->get_option_no_throw("--help")) help->disable_flag_override();
    auto problem = problem_with_values(app, argc, argv);
    try {
        if (problem.empty()) app.parse(argc, argv);
    } catch (const CLI::Success& request) {
        std::ostringstream text;
        app.exit(request, text);
        return print_result(app.get_name(), text.str());
    } catch (const CLI::Error& error) {
        problem = words_for(app, error);
    }
    if (problem.empty()) return std::nullopt;
    return usage_error(app.get_name(), problem, wants_json(app, argc, argv));
}

} // namespace gpu_sleep::cli
