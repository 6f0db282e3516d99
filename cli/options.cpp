// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Shared options.

#include "cli/options.hpp"

#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/process_info.hpp"
#include "cli/render.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace gpu_sleep::cli {
namespace {

std::string duration_trouble(const std::string& text) {
    const auto duration = parse_duration(text);
    return duration ? std::string() : duration.error().message;
}

/// Whether `word` is one of those that `words` separates by '|'.
bool is_one_of(std::string_view word, std::string_view words) {
    while (!words.empty()) {
        const auto end = std::min(words.find('|'), words.size());
        if (words.substr(0, end) == word) return true;
        words.remove_prefix(std::min(end + 1, words.size()));
    }
    return false;
}

bool is_list_of_nothing(std::string_view word) {
    return !word.empty() && word.find_first_not_of(',') == std::string_view::npos;
}

/// The first option of the command line that has nothing behind it, as "--option=" or "--option ,", or null:
/// CLI11 would take the next word for the value, whatever it is.
const char* find_valueless(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--") break;
        if (!word.starts_with("--")) continue;
        const auto equals = word.find('=');
        if (equals == std::string_view::npos && i + 1 < argc && is_list_of_nothing(argv[i + 1]))
            return argv[i];
        if (equals == word.size() - 1) return argv[i];
        if (equals != std::string_view::npos && is_list_of_nothing(word.substr(equals + 1))) return argv[i];
    }
    return nullptr;
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
    app.set_version_flag("--version", app.get_name() + " " GPU_SLEEP_VERSION, "Print the version and exit");
    app.footer("Examples:\n" + examples + exit_statuses);
}

CLI::Option* add_target(CLI::App& app, std::string& target) {
    return app
        .add_option("PID", target,
                    "Process id, or the name that the program has; the id of a parent that has no agent\n"
                    "stands for its descendants that have one")
        ->type_name("");
}

void add_user(CLI::App& app, std::optional<uid_t>& user) {
    const auto check = [](const std::string& text) {
        const auto found = parse_user(text);
        return found ? std::string() : found.error().message;
    };
    const auto assign = [&user](const std::string& text) { user = *parse_user(text); };
    app.add_option_function<std::string>("--user", assign, "Only processes of this user (default: all)")
        ->type_name("NAME|UID")
        ->check(check);
}

void add_tags(CLI::App& app, const std::string& name, std::vector<std::string>& tags,
              const std::string& help) {
    const auto check = [](const std::string& tag) {
        if (model::is_valid_tag(tag)) return std::string();
        return fmt::format("'{}' is not a tag: 1 to {} letters, digits, '_', '-', '.' and ':'", tag,
                           model::k_max_tag_length);
    };
    app.add_option(name, tags, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("TAG[,TAG...]")
        ->check(check);
}

void add_duration(CLI::App& app, const std::string& name, Milliseconds& value, const std::string& help) {
    const auto assign = [&value](const std::string& text) { value = *parse_duration(text); };
    const auto shown = format_seconds(std::chrono::duration<double>(value).count());
    app.add_option_function<std::string>(name, assign, fmt::format("{} (default: {})", help, shown))
        ->type_name("DURATION")
        ->check(duration_trouble);
}

CLI::Option* add_limit(CLI::App& app, const std::string& name, std::optional<Milliseconds>& value,
                       const std::string& help) {
    const auto assign = [&value](const std::string& text) { value = *parse_duration(text); };
    return app.add_option_function<std::string>(name, assign, help)
        ->type_name("DURATION")
        ->check(duration_trouble);
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, const std::string& words,
                        const std::function<void(const std::string&)>& assign, const std::string& help) {
    const auto check = [words](const std::string& word) {
        if (is_one_of(word, words)) return std::string();
        return fmt::format("'{}' is not one of {}", word, words);
    };
    return app.add_option_function<std::string>(name, assign, help)->type_name(words)->check(check);
}

void add_gate(CLI::App& app, std::optional<model::OnTouch>& on_touch, std::optional<model::GateMode>& gate,
              const std::string& default_words) {
    add_choice(
        app, "--on-touch", "wait|wake|fail",
        [&on_touch](const std::string& word) { on_touch = model::parse_on_touch(word); },
        fmt::format("GPU work that comes while the process is asleep waits, wakes it, or fails ({})",
                    default_words));
    add_choice(
        app, "--gate", "shut|checked",
        [&gate](const std::string& word) { gate = model::parse_gate_mode(word); },
        "In part asleep, hold all work, or only work that names a sleeping address (default: shut, unless "
        "the program parts them)");
}

void add_output(CLI::App& app, OutputOptions& output, bool quiet_too) {
    app.add_flag("--json", output.json, "Print the result as JSON, sizes in bytes, times in seconds");
    if (quiet_too) app.add_flag("--quiet,-q", output.quiet, "Print neither progress nor result, only errors");
}

int usage_error(std::string_view program, const std::string& trouble, bool json) {
    const auto error = make_error(ErrorCode::invalid_argument, "{}", trouble);
    complain(render_error(program, "", error));
    const auto text = json ? to_json(program, error) + '\n' : std::string();
    [[maybe_unused]] const int written = print_result(program, text); // it is wrong usage in any case
    return exit_status::usage;
}

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
    try {
        if (const char* word = find_valueless(argc, argv))
            throw CLI::ArgumentMismatch(fmt::format("'{}' has no value", word),
                                        CLI::ExitCodes::ArgumentMismatch);
        app.parse(argc, argv);
    } catch (const CLI::Success& request) {
        std::ostringstream text;
        app.exit(request, text);
        return print_result(app.get_name(), text.str());
    } catch (const CLI::Error& error) {
        const auto trouble = fmt::format("{}; see {} --help", error.what(), app.get_name());
        return usage_error(app.get_name(), trouble, wants_json(app, argc, argv));
    }
    return std::nullopt;
}

} // namespace gpu_sleep::cli
