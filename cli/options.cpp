// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Shared options.

#include "cli/options.hpp"

#include "model/model.hpp"

#include <iostream>

namespace gpu_sleep::cli {

void add_basics(CLI::App& app, const std::string& examples) {
    app.set_version_flag("--version", app.get_name() + " " GPU_SLEEP_VERSION, "Print the version and exit");
    app.footer(
        "Examples:\n" + examples +
        "\nExit status: 0 done, 1 failed and awake, 2 wrong usage, 3 no such process or no agent in it,\n"
        "4 timed out, 5 not permitted, 6 damaged, 7 failed and asleep, 8 not enough host memory.");
}

CLI::Option* add_target(CLI::App& app, std::string& target) {
    return app
        .add_option("PID", target,
                    "Process id, or the name that the program has; the id of a parent that has no agent\n"
                    "stands for its descendants that have one")
        ->type_name("");
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
    const auto check = [](const std::string& text) {
        const auto duration = parse_duration(text);
        return duration ? std::string() : duration.error().message;
    };
    const auto assign = [&value](const std::string& text) { value = *parse_duration(text); };
    const auto shown = format_seconds(std::chrono::duration<double>(value).count());
    app.add_option_function<std::string>(name, assign, fmt::format("{} (default: {})", help, shown))
        ->type_name("DURATION")
        ->check(check);
}

void add_output(CLI::App& app, OutputOptions& output, bool quiet_too) {
    app.add_flag("--json", output.json, "Print the result as JSON, sizes in bytes, times in seconds");
    if (quiet_too) app.add_flag("--quiet,-q", output.quiet, "Print neither progress nor result, only errors");
}

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& request) {
        app.exit(request);
        return exit_status::done;
    } catch (const CLI::Error& error) {
        std::cerr << app.get_name() << ": " << error.what() << "; see " << app.get_name() << " --help\n";
        return exit_status::usage;
    }
    return std::nullopt;
}

} // namespace gpu_sleep::cli
