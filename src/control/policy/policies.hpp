// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The policies of all processes that a pass sees: the administrator's file, those of users, or the command
// line in place of both.

#pragma once

#include "control/policy/decision.hpp"
#include "control/process_info.hpp"

namespace gpu_sleep::control::policy {

/// The same, of a file that belongs to `owner` (this process's user's may be root's, too), and that nobody
/// else can write to; nothing if it does not exist. Opens nothing but plain files. Errors: not_permitted
/// (somebody else could have written it), io_failed, those of parse_configuration().
[[nodiscard]] Result<std::optional<Configuration>>
read_configuration(const std::filesystem::path& path, Author author, uid_t owner, bool has_directory = false);

/// Where policies come from.
struct Sources {
    std::optional<std::filesystem::path> config;      ///< in place of the administrator's file
    std::optional<Ladder> ladder;                     ///< of all processes: no file is read
    Ladder otherwise{Rung{std::chrono::minutes(15)}}; ///< of those of whom no file says when they sleep
};

/// Reads each file once, when it is needed first. Not thread-safe.
class Policies {
public:
    /// To be called once, before the rest; after an error only take_complaints() may be. Errors: of the
    /// administrator's file and of this user's own, as read_configuration(); invalid_argument (there is no
    /// such file as `config`).
    [[nodiscard]] Result<void> load(const Sources& sources);

    /// Returns the policy of a process that calls itself `name`. If another user's file cannot be used,
    /// complains once, and uses the administrator's alone.
    [[nodiscard]] Policy of(const Process& process, const std::string& name);

    /// From now on, the administrator's file decides alone on the user's processes.
    void drop_wishes(uid_t user) { wishes_[user] = {}; }

    /// Returns the budgets of the machine, and of the users of `processes`.
    [[nodiscard]] Budgets budgets(const std::vector<Process>& processes);

    /// Adds complaints about sections that fit no user, or none of the processes that of() was called for.
    /// May ask the network.
    void complain_of_unused();

    /// The program that hears of each pass, open (O_PATH); empty without one.
    [[nodiscard]] const UniqueFd& notify() const noexcept { return notify_; }
    [[nodiscard]] std::string notify_path() const { return limits_.notify.value_or(""); }

    /// The files that were read.
    [[nodiscard]] const std::vector<std::string>& files() const noexcept { return files_; }
    /// Sentences about what is wrong with files, each once, also of those of other users that cannot be used:
    /// takes them.
    [[nodiscard]] std::vector<std::string> take_complaints() { return std::exchange(complaints_, {}); }

private:
    /// read_configuration(), and notes the file.
    [[nodiscard]] Result<std::optional<Configuration>> read(const std::filesystem::path& path, Author author,
                                                            uid_t owner, bool has_directory = false);
    /// The user's own; empty where there is none, or none that can be used.
    [[nodiscard]] const Configuration& file_of(uid_t user);

    Configuration limits_; ///< the administrator's
    UniqueFd notify_;
    std::map<uid_t, Configuration> wishes_; ///< of the users that were looked for
    std::map<uid_t, std::string> names_;    ///< the same
    std::vector<Subject> subjects_;         ///< that of() was called for
    std::optional<Ladder> otherwise_;       ///< unset: no files are read
    std::vector<std::string> files_;
    std::vector<std::string> complaints_;
};

} // namespace gpu_sleep::control::policy
