// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The options that several commands share, read in the same way and described in the same words.

#pragma once

#include "base/units.hpp"
#include "model/model.hpp"

#include <CLI/CLI.hpp>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// Processes that go together, as one operation.
struct Selection {
    bool tree = false; ///< the target and its descendants
    std::string group; ///< in place of a target; may be empty
    [[nodiscard]] bool is_joint() const noexcept { return tree || !group.empty(); }
};

/// The output options of a command.
struct OutputOptions {
    bool json = false;
    bool quiet = false; ///< no progress and no report; errors are shown all the same
};

/// The exit statuses of the commands that send requests to processes.
inline constexpr const char* k_exit_statuses =
    "\nExit status: 0 done, 1 failed and awake, 2 wrong usage, 3 no such process or no agent in it,\n"
    "4 timed out, 5 not permitted, 6 damaged, 7 failed and asleep, 8 not enough host memory or disk space,\n"
    "9 not known how it ended.";

/// Gives `app` --help, which ends with `examples` and `exit_statuses`, and --version.
void add_basics(CLI::App& app, const std::string& examples,
                const std::string& exit_statuses = k_exit_statuses);

/// Reads the text of a value; returns what is wrong with it, or nothing.
using ReadText = std::function<std::string(const std::string& text)>;

/// An option that takes one value of the kind `type`, once.
CLI::Option* add_value(CLI::App& app, const std::string& name, const std::string& type, const ReadText& read,
                       const std::string& help);

/// An option that takes the name of a file or a directory.
CLI::Option* add_path(CLI::App& app, const std::string& name, const std::string& type, std::string& path,
                      const std::string& help);

/// A word that is no option, and not empty: `wanted` says what it should be.
CLI::Option* add_word(CLI::App& app, const std::string& name, std::string& word, const std::string& wanted,
                      const std::string& help);

/// An option that is there or not. It may be there twice.
CLI::Option* add_flag(CLI::App& app, const std::string& name, bool& value, const std::string& help);

/// The positional PID, which may be a name; see find_targets.
CLI::Option* add_target(CLI::App& app, std::string& target);

/// Several of them, and --all in their place or beside names; see find_each() and Search::takes_several.
void add_targets(CLI::App& app, std::vector<std::string>& targets, bool& takes_all);

/// --tree and --group, of which the latter takes the place of PID; see selection_problem().
void add_selection(CLI::App& app, Selection& selection);

/// What is wrong with them, PID and --all together, or nothing.
[[nodiscard]] std::string selection_problem(const Selection& selection,
                                            const std::vector<std::string>& targets, bool takes_all);

/// What is wrong with the name of a process or of a group, or nothing.
[[nodiscard]] std::string name_problem(const std::string& name);

/// --user: select only processes of one user.
void add_user(CLI::App& app, std::optional<uid_t>& user);

/// An option that takes tags, separated by commas or given again. A bad tag is wrong usage.
void add_tags(CLI::App& app, const std::string& name, std::vector<std::string>& tags,
              const std::string& help);

/// What is wrong with `tag`, or nothing.
[[nodiscard]] std::string tag_problem(const std::string& tag);

/// An option that takes a duration with its unit; what `value` holds is the default and is shown as such.
void add_duration(CLI::App& app, const std::string& name, Milliseconds& value, const std::string& help);

/// An option that takes one of `words`, written "shut|checked"; any other is wrong usage. `assign` gets it.
CLI::Option* add_choice(CLI::App& app, const std::string& name, const std::string& words,
                        const std::function<void(const std::string&)>& assign, const std::string& help);

/// --on-touch, --gate and --touch-limit: what GPU work does while the process is asleep. `default_words`
/// describes the default of --on-touch.
void add_gate(CLI::App& app, std::optional<model::OnTouch>& on_touch, std::optional<model::GateMode>& gate,
              std::optional<Milliseconds>& touch_limit, const std::string& default_words);

/// --min-awake: whom those leave alone that make room.
void add_min_awake(CLI::App& app, std::optional<Milliseconds>& min_awake);

/// What is wrong with --on-touch and --touch-limit together, or nothing.
[[nodiscard]] std::string touch_problem(std::optional<model::OnTouch> on_touch,
                                        std::optional<Milliseconds> touch_limit);

/// An option that takes a duration and has no default of its own.
CLI::Option* add_limit(CLI::App& app, const std::string& name, std::optional<Milliseconds>& value,
                       const std::string& help);

/// An option that takes a size and has no default of its own.
CLI::Option* add_size(CLI::App& app, const std::string& name, std::optional<Bytes>& value,
                      const std::string& help);

/// --json and, unless `quiet_too` is false, --quiet.
void add_output(CLI::App& app, OutputOptions& output, bool quiet_too = true);

/// Reports wrong usage of `program` on standard error, and with `json` also on standard output. Returns the
/// exit status.
[[nodiscard]] int usage_error(std::string_view program, const std::string& problem, bool json);

/// Reads the command line. Returns an exit status if the command is done: it has printed its help or version,
/// or it has reported wrong usage by usage_error(), naming the option. An option without its value, or with
/// an empty one, is wrong usage. Catches what CLI11 throws.
[[nodiscard]] std::optional<int> parse(CLI::App& app, int argc, const char* const* argv);

} // namespace gpu_sleep::cli
