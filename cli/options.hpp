// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The options that several commands share, and how a command line is read.

#pragma once

#include "cli/usage.hpp"
#include "control/command.hpp"

namespace gpu_sleep::cli {

/// The output options of a command.
struct OutputOptions {
    bool json = false;
    bool quiet = false; ///< no progress and no report; errors are shown all the same
};

/// The exit statuses of the commands that put processes to sleep.
inline constexpr const char* k_exit_statuses = "0 done, 1 failed (the process is awake), 2 wrong usage, 3 no "
                                               "such process or no agent in it, 4 timed out, "
                                               "5 not permitted, 6 damaged contents, 7 failed (the process "
                                               "is asleep), 8 not enough host memory or disk space, "
                                               "9 outcome not known.";

/// PID, which may be a name; see find_targets.
[[nodiscard]] usage::Row target_row(std::string& target);

/// Several of them, and --all in their place or beside names; see find_each() and Search::takes_several.
[[nodiscard]] usage::Row targets_row(std::vector<std::string>& targets);
[[nodiscard]] usage::Row all_row(bool& takes_all);

/// --tree and --group, of which the latter takes the place of PID; see selection_problem().
[[nodiscard]] usage::Row tree_row(control::Selection& selection);
[[nodiscard]] usage::Row group_row(control::Selection& selection);

/// What is wrong with them, PID and --all together, or nothing.
[[nodiscard]] std::string selection_problem(const control::Selection& selection);

/// What is wrong with the name of a process or of a group, or nothing.
[[nodiscard]] std::string name_problem(const std::string& name);

/// --user: select only processes of one user.
[[nodiscard]] usage::Row user_row(std::optional<uid_t>& user);

/// Tags, separated by commas or given again. A bad tag is wrong usage.
[[nodiscard]] usage::Value tags(std::vector<std::string>& tags);

/// What is wrong with `tag`, or nothing.
[[nodiscard]] std::string tag_problem(const std::string& tag);

/// --on-touch, --gate and --touch-limit: what GPU work does while the process is asleep. `default_words`
/// describes the default of --on-touch.
[[nodiscard]] usage::Row on_touch_row(std::optional<model::OnTouch>& on_touch,
                                      const std::string& default_words);
[[nodiscard]] usage::Row gate_row(std::optional<model::GateMode>& gate);
[[nodiscard]] usage::Row touch_limit_row(std::optional<Milliseconds>& limit);

/// What is wrong with --on-touch and --touch-limit together, or nothing.
[[nodiscard]] std::string touch_problem(std::optional<model::OnTouch> on_touch,
                                        std::optional<Milliseconds> touch_limit);

/// --min-awake, beside `options`: whom those leave alone that make room.
[[nodiscard]] usage::Row min_awake_row(std::optional<Milliseconds>& min_awake, const std::string& options);

/// --dry-run of a sleep.
[[nodiscard]] usage::Row dry_run_row(bool& dry_run);

/// --json, and --quiet.
[[nodiscard]] usage::Row json_row(bool& json);
[[nodiscard]] usage::Row quiet_row(bool& quiet);

/// Says on standard error why a command did nothing, and on standard output, too, as JSON. Returns the exit
/// status.
int tell_failure(std::string_view program, const OutputOptions& output, const Error& error);

/// Reports wrong usage of `program` on standard error, and with `json` also on standard output. Returns the
/// exit status.
[[nodiscard]] int usage_error(std::string_view program, const std::string& problem, bool json);

/// Reads the command line. Returns an exit status if the command is done: it has printed its help or version,
/// or it has reported wrong usage by usage_error(), naming the option. An option without its value, or with
/// an empty one, is wrong usage. Sets `subcommand`, if the table has any. Catches what CLI11 throws.
[[nodiscard]] std::optional<int> parse(usage::Table table, int argc, const char* const* argv,
                                       std::string* subcommand = nullptr);

/// What was typed of stores, for which a request has no place as it is.
struct TypedStores {
    std::vector<std::string> stores;
    std::string directory;
    std::string spill; ///< of gpu-sleep alone
};

[[nodiscard]] usage::Row level_row(model::Level& level);
[[nodiscard]] usage::Row store_row(TypedStores& typed);
[[nodiscard]] usage::Row dir_row(TypedStores& typed);

/// Puts what was typed into `placement`. Returns what is wrong with it, or nothing.
[[nodiscard]] std::string read_stores(const TypedStores& typed, model::Placement& placement);

} // namespace gpu_sleep::cli
