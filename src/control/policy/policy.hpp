// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The contents of a configuration, the ladder down which it leads a process the longer that is idle, and the
// policy that follows for one process. Plain data and pure functions.

#pragma once

#include "base/units.hpp"
#include "control/program_name.hpp"
#include "model/terms.hpp"

#include <functional>
#include <map>

namespace gpu_sleep::control::policy {

[[nodiscard]] inline double seconds_of(Milliseconds time) noexcept {
    return std::chrono::duration<double>(time).count();
}

/// Where the contents of a process that is not used are, each further from the GPU than the one before.
enum class Tier : std::uint8_t {
    awake = 0, ///< on the GPU
    host = 1,  ///< in host memory
    file = 2,
    deep = 3, ///< in files, and nothing is left on the GPU
};

[[nodiscard]] std::string_view to_string(Tier tier) noexcept;

struct Rung {
    Milliseconds idle{0}; ///< from when on
    Tier tier = Tier::host;
    friend bool operator==(const Rung&, const Rung&) = default;
};

/// By time, each rung deeper than the one before. Empty: it stays awake.
using Ladder = std::vector<Rung>;

/// Reads "15m", which is for host memory, or "4h:file". Errors: invalid_argument.
[[nodiscard]] Result<Rung> parse_rung(std::string_view text);

/// Puts the rungs in their order. Errors: invalid_argument (two for one time, or a later one that is no
/// deeper).
[[nodiscard]] Result<Ladder> make_ladder(std::vector<Rung> rungs);

/// The lowest rung that has been reached after so many seconds; nothing before the first.
[[nodiscard]] std::optional<Rung> rung_at(const Ladder& ladder, double idle_seconds) noexcept;

/// At every time as deep as the deeper of the two.
[[nodiscard]] Ladder deeper_of(const Ladder& one, const Ladder& other);

/// Whether it cannot be gone down without a directory.
[[nodiscard]] bool leads_to_files(const Ladder& ladder) noexcept;

/// The error of a ladder that leads to files although no directory is set.
inline constexpr const char* k_directory_missing =
    "idle moves contents to files, but no directory is set: add, for example, directory = "
    "\"/var/tmp/gpu-sleep-{user}\" below it";

/// As a person would write it: "15m".
[[nodiscard]] std::string to_text(Milliseconds time);
/// "15m host, 4h file", or "never".
[[nodiscard]] std::string to_text(const Ladder& ladder);

/// The author of a file, which decides what it may say.
enum class Author { administrator, user };

/// Which settings of files decide on a process: each as "command.vllm.idle of /etc/gpu-sleep.toml",
/// printable.
struct Grounds {
    std::map<std::string, std::string, std::less<>> said_by; ///< by key; "idle" is also what exempts
    std::vector<std::string> overridden; ///< which had no effect, as "SETTING, by SETTING"

    /// Has `setting` decide on `key`.
    void note(const std::string& key, const std::string& setting);
};

/// The settings of a section. Unset: the section does not mention them.
struct Settings {
    std::optional<Ladder> idle;
    std::optional<Milliseconds> min_awake;
    std::optional<bool> exempt;           ///< also by idle = "never"
    std::optional<std::string> directory; ///< absolute; "{user}" in it stands for the owner's name
    std::optional<bool> spill;
    std::optional<Bytes> host_budget; ///< of all processes of the user
    bool is_final = false;            ///< the section for the user exempts it: nothing overrides that
    Grounds grounds;                  ///< of settings_for()
};

/// The settings of a file for one tag.
struct TagSettings {
    std::optional<model::Store> store;
    std::optional<bool> exempt; ///< it stays on the GPU
};

/// The contents of one configuration file.
struct Configuration {
    std::string name; ///< of the file
    Settings reclaim;
    std::map<std::string, Settings, std::less<>> users;    ///< by name
    std::map<std::string, Settings, std::less<>> commands; ///< by the name of a process or of its program
    std::map<std::string, TagSettings, std::less<>> tags;
    std::optional<Bytes> machine_budget; ///< of host memory, for all users together
    std::optional<Bytes> user_budget;    ///< for each user
    std::optional<std::string> notify;   ///< the program that hears of each pass; an absolute path
};

/// Reads the text of a configuration. `name` is what messages call it; `has_directory`: the administrator's
/// file names one for the ladders of a user's that lead to files. Errors: invalid_argument (the file, the
/// line and the key; so far as it is TOML); unsupported (this build has no parser for TOML).
[[nodiscard]] Result<Configuration> parse_configuration(std::string_view text, std::string_view name,
                                                        Author author, bool has_directory = false);

/// The process that a policy applies to.
struct Subject {
    std::string user;
    std::string name; ///< that the process has, or empty
    ProgramName program;
};

/// Returns the settings of `file` for the process. A section for the command overrides one for the user, and
/// that the general one. Of several for the command, the last of these counts: program, script, both as they
/// are shown, name. A section that exempts the user overrides all.
[[nodiscard]] Settings settings_for(const Configuration& file, const Subject& subject);

/// The policy that applies to one process.
struct Policy {
    Ladder ladder;           ///< empty: it is left alone
    std::string exempt_by{}; ///< where that is because it is exempt, the setting that says so
    bool is_final = false;   ///< the administrator has exempted the user
    std::optional<Milliseconds> min_awake;
    std::string directory; ///< may be empty
    bool spill = false;
    std::map<std::string, TagSettings, std::less<>> tags;
    std::optional<Bytes> host_budget; ///< of all processes of the user
    Grounds grounds;
};

/// Returns the policy that follows from one file alone.
[[nodiscard]] Policy policy_of(const Configuration& file, const Subject& subject);

/// Merges the administrator's `limits` with the user's own `wishes`. The user's may lead further down and
/// earlier, but keep nothing longer on the GPU, nor more in host memory: at every time the deeper rung
/// counts, and the smaller budget. A user whom the administrator has exempted stays awake. The user chooses a
/// directory only if the administrator names none: one that cannot be used would keep contents in host
/// memory.
[[nodiscard]] Policy merge(const Policy& limits, const Policy& wishes);

} // namespace gpu_sleep::control::policy
