// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Shared rows, and what is wrong with a command line.

#include "cli/options.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "cli/show/json.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "model/environment.hpp"

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <sstream>

namespace gpu_sleep::cli {
namespace {

// ---- What is wrong with a command line, in our words whatever the version of CLI11
// ----------------------------------------------------------------------------------------------------

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App*) { return true; });
}

/// `app` and its subcommands.
std::vector<const CLI::App*> all_of(const CLI::App& app) {
    auto apps = subcommands_of(app);
    apps.insert(apps.begin(), &app);
    return apps;
}

const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
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
std::string problem_with_values(const CLI::App& app, int argc, const char* const* argv) {
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

/// "a, b or c".
std::string listed(const std::vector<const CLI::App*>& commands) {
    std::string text;
    for (std::size_t i = 0; i < commands.size(); ++i)
        text += (i == 0 ? "" : i + 1 == commands.size() ? " or " : ", ") + commands[i]->get_name();
    return text;
}

/// An option that `word` begins, or that begins it, or is nearest to it, as a question; or nothing.
std::string likely_meant(const CLI::App& app, std::string_view word) {
    if (!word.starts_with("--")) return {};
    word.remove_prefix(2);
    std::vector<std::string_view> known;
    std::string_view meant;
    for (const auto* each : all_of(app))
        for (const auto* option : each->get_options())
            for (const std::string_view name : option->get_lnames()) {
                known.push_back(name);
                if (meant.empty() && (name.starts_with(word) || word.starts_with(name))) meant = name;
            }
    if (meant.empty()) meant = nearest(word, known);
    return meant.empty() ? std::string() : fmt::format(" (did you mean --{}?)", meant);
}

/// The first word that nobody wants, an option if there is one among them, or nothing.
std::string unwanted_word(const CLI::App& app) {
    const auto words = app.remaining(true);
    if (words.empty()) return {};
    const auto is_option = [](const std::string& word) { return word.size() > 1 && word.front() == '-'; };
    const auto option = std::ranges::find_if(words, is_option);
    const auto commands = subcommands_of(app);
    if (option == words.end() && !commands.empty() && app.get_subcommands().empty())
        return fmt::format("there is no subcommand '{}': use {}", words.front(), listed(commands));
    if (option == words.end()) return fmt::format("unexpected argument '{}'", words.front());
    const auto name = option->substr(0, option->find('='));
    return fmt::format("there is no option {}{}", name, likely_meant(app, name));
}

std::string missing_word(const CLI::App& app) {
    for (const auto* each : all_of(app)) {
        if (each != &app && !each->parsed()) continue;
        for (const auto* option : each->get_options())
            if (option->get_required() && option->count() == 0) return option->get_name() + " is missing";
    }
    return "a subcommand is missing: " + listed(subcommands_of(app));
}

std::string excluded_option(const CLI::App& app) {
    for (const auto* each : all_of(app))
        for (const auto* option : each->get_options())
            for (const auto* other : option->get_excludes())
                if (option->count() > 0 && other->count() > 0)
                    return fmt::format("{} and {} cannot be used together", option->get_name(),
                                       other->get_name());
    return {};
}

std::string repeated_option(const CLI::App& app) {
    for (const auto* each : all_of(app))
        for (const auto* option : each->get_options())
            if (option->count() > static_cast<std::size_t>(std::max(1, option->get_items_expected_max())))
                return option->get_name() + " is given twice";
    return {};
}

std::string words_for(const CLI::App& app, const CLI::Error& error) {
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
    const bool has_json = find_option(app, "--json") != nullptr;
    const auto is = [](std::string_view text) { return [=](const char* word) { return word == text; }; };
    const auto* const end = std::find_if(argv, argv + argc, is("--"));
    return has_json && std::find_if(argv, end, is("--json")) != end;
}

/// Where standard descriptors are closed: nothing else gets their numbers, and writing to them fails.
void keep_standard_descriptors() {
    int fd = -1;
    do {
        fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) ::close(fd);
}

/// Puts the directory into `placement`. Returns what is wrong with it, or nothing.
std::string read_directory(const TypedStores& typed, model::Placement& placement) {
    if (!typed.directory.empty() && typed.stores.empty() && typed.spill.empty()) {
        placement.store = model::Store::file; // who names a directory means files
        placement.store_is_named = true;
    }
    const bool needs_directory = model::uses_files(placement);
    placement.spill = !typed.spill.empty();
    if (placement.spill && !typed.directory.empty() && typed.directory != typed.spill)
        return "--dir and --spill name different directories; a sleep uses only one";
    const auto& directory = typed.directory.empty() ? typed.spill : typed.directory;
    if (needs_directory && directory.empty()) return "--store file needs --dir";
    if (!needs_directory && !placement.spill && !directory.empty())
        return "--dir can be used only with --store file";
    if (placement.keep_files && directory.empty())
        return "--keep-files can be used only with --dir or --spill";
    if (directory.empty()) return {};
    std::error_code failure;
    placement.directory = std::filesystem::absolute(directory, failure).lexically_normal();
    if (!failure) return {};
    return fmt::format("the directory '{}' is relative to a working directory that is gone", directory);
}

} // namespace

usage::Row target_row(std::string& target) {
    return usage::word_row("PID", target, "a process id, or the name of a process",
                           "Process id, or name of a process");
}

usage::Row targets_row(std::vector<std::string>& targets) {
    const auto read = [&targets](const std::string& word) {
        targets.push_back(word);
        return std::string(word.empty() ? "it is empty; it should be a process id, or a name" : "");
    };
    return usage::brief(
        {"PID", {.name = {}, .read = read, .may_repeat = true}, "Process ids, or names of processes"});
}

usage::Row all_row(bool& takes_all) {
    return {"--all", usage::flag(takes_all),
            "All processes with an agent; with a name, all processes of that name"};
}

usage::Row tree_row(control::Selection& selection) {
    return {"--tree", usage::flag(selection.tree), "PID and its descendants: act on all or none"};
}

usage::Row group_row(control::Selection& selection) {
    const auto read = [&selection](const std::string& name) {
        selection.group = name;
        auto problem = name_problem(name);
        return problem.empty() ? problem : problem + "; gpu-ps --long shows the groups";
    };
    return {"--group", usage::text("GROUP", read), "All processes of this group: act on all or none"};
}

std::string selection_problem(const control::Selection& selection) {
    const auto& [words, is_tree, group, takes_all, user] = selection;
    if (is_tree && !group.empty()) return "--tree and --group cannot be used together";
    if (selection.is_joint() && takes_all) return "--all cannot be used with --tree or --group";
    if (!group.empty() && !words.empty()) return "--group is used instead of PID";
    if (is_tree && words.size() > 1) return "--tree takes only one PID";
    return selection.is_for_all() && !takes_all ? "PID is missing" : "";
}

std::string name_problem(const std::string& name) {
    if (model::is_valid_name(name)) return {};
    return fmt::format("'{}' is not {}", name, model::k_name_rule);
}

usage::Row user_row(std::optional<uid_t>& user) {
    return {"--user", usage::parsed("NAME|UID", control::parse_user, user), "Only processes of this user"};
}

std::string tag_problem(const std::string& tag) {
    if (model::is_valid_tag(tag)) return {};
    return fmt::format("'{}' is not a tag: 1 to {} letters, digits, '_', '-', '.' and ':'", tag,
                       model::k_max_tag_length);
}

usage::Value tags(std::vector<std::string>& tags) {
    const auto read = [&tags](const std::string& word) { return tags.push_back(word), tag_problem(word); };
    return {.name = "TAG[,TAG...]", .read = read, .may_repeat = true, .separator = ','};
}

usage::Row on_touch_row(std::optional<model::OnTouch>& on_touch, const std::string& default_words) {
    const auto assign = [&on_touch](const std::string& word) { on_touch = model::parse_on_touch(word); };
    return {"--on-touch", usage::choice("wait|wake|fail", assign),
            "While the process sleeps, GPU work waits (wait), wakes it (wake) or fails (fail)" +
                default_words};
}

usage::Row gate_row(std::optional<model::GateMode>& gate) {
    const auto assign = [&gate](const std::string& word) { gate = model::parse_gate_mode(word); };
    return {"--gate", usage::choice("shut|checked", assign),
            "If only a part sleeps: hold all GPU work (shut), or work that names sleeping memory (checked)"};
}

usage::Row touch_limit_row(std::optional<Milliseconds>& limit) {
    return {"--touch-limit", usage::duration(limit),
            "If GPU work wakes the process: fail that work when GPU memory is still short after this time "
            "(default: no limit)"};
}

std::string touch_problem(std::optional<model::OnTouch> on_touch, std::optional<Milliseconds> touch_limit) {
    if (!touch_limit || !on_touch || *on_touch == model::OnTouch::wake) return {};
    return "--touch-limit can be used only with --on-touch wake";
}

usage::Row min_awake_row(std::optional<Milliseconds>& min_awake, const std::string& options) {
    return {"--min-awake", usage::duration(min_awake),
            fmt::format("With {}: leave processes awake that woke less than this long ago (default: 30 s)",
                        options)};
}

usage::Row dry_run_row(bool& dry_run) {
    return {"--dry-run", usage::flag(dry_run), "Only show what would be freed, kept and dropped"};
}

usage::Row json_row(bool& json) {
    return {"--json", usage::flag(json), "Print the result as JSON"};
}

usage::Row quiet_row(bool& quiet) {
    return {"-q,--quiet", usage::flag(quiet), "Print only errors"};
}

int tell_failure(std::string_view program, const OutputOptions& output, const Error& error) {
    print_error(render_error(program, "", error));
    const auto text = output.json ? to_json(program, error) + '\n' : std::string();
    return print_result(program, text, traits(error.code).exit_status);
}

int usage_error(std::string_view program, const std::string& problem, bool json) {
    return tell_failure(program, {.json = json},
                        make_error(ErrorCode::invalid_argument, "{}; see {} --help", problem, program));
}

std::optional<int> parse(usage::Table table, int argc, const char* const* argv, std::string* subcommand) {
    CLI::App app;
    usage::add(app, std::move(table));
    keep_standard_descriptors();
    log::name_lines(program_invocation_short_name);
    auto problem = problem_with_values(app, argc, argv);
    try {
        if (problem.empty()) app.parse(argc, argv);
    } catch (const CLI::Success& request) {
        std::ostringstream text;
        app.exit(request, text);
        const auto written = write_result(text.str());
        const bool is_read = !written && written.error().driver_status == EPIPE; // as far as it was wanted
        return written || is_read ? exit_status::done : print_result(app.get_name(), text.str());
    } catch (const CLI::Error& error) {
        problem = words_for(app, error);
    }
    const char* const level = std::getenv(model::environment::k_log);
    if (problem.empty() && level && *level != '\0' && !log::parse_severity(level))
        problem = fmt::format("{}: '{}' is not {}", model::environment::k_log, level, log::k_severities);
    if (!problem.empty()) return usage_error(app.get_name(), problem, wants_json(app, argc, argv));
    for (const auto* each : app.get_subcommands()) *subcommand = each->get_name();
    return std::nullopt;
}

usage::Row level_row(model::Level& level) {
    const auto assign = [&level](const std::string& word) {
        level = static_cast<model::Level>(word.front() - '0');
    };
    return {"--level", usage::choice("0|1|2", assign),
            "1: keep contents (default). 2: drop them. 0: pause only. A tag's policy overrides 1 and 2"};
}

usage::Row store_row(TypedStores& typed) {
    return {"--store", usage::list("STORE|TAG=STORE,...", typed.stores),
            "Where to keep contents: host (default) or file, also by tag, as in weights=file,kv_cache=host"};
}

usage::Row dir_row(TypedStores& typed) {
    return {"--dir", usage::path("DIR", typed.directory), "Keep contents in compressed files in DIR"};
}

std::string read_stores(const TypedStores& typed, model::Placement& placement) {
    for (const auto& word : typed.stores)
        if (auto added = model::add_store(word, placement); !added)
            return "--store: " + std::move(added).error().message;
    return read_directory(typed, placement);
}

} // namespace gpu_sleep::cli
