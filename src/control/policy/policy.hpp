// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a configuration says, and the policy that follows from it for one process. Plain data and pure
// functions: config_file.hpp reads it.

#pragma once

#include "control/policy/ladder.hpp"
#include "control/program_name.hpp"
#include "model/terms.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::control::policy {

/// Who has written a file, which decides what it may say.
enum class Author { administrator, user };

/// Which settings of files decide on a process: each as "command.vllm.idle of /etc/gpu-sleep.toml",
/// printable.
struct Grounds {
    std::map<std::string, std::string, std::less<>> said_by; ///< by key; "idle" is also what exempts
    std::vector<std::string> overridden; ///< which had no effect, as "SETTING, by SETTING"

    /// Has `setting` decide on `key`.
    void note(const std::string& key, const std::string& setting);
};

/// What a section says of processes. Unset: it says nothing of that.
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

/// What a file says of one tag.
struct TagSettings {
    std::optional<model::Store> store;
    std::optional<bool> exempt; ///< it stays on the GPU
};

/// What one file says.
struct Configuration {
    std::string name; ///< of the file
    Settings reclaim;
    std::map<std::string, Settings, std::less<>> users;    ///< by name
    std::map<std::string, Settings, std::less<>> commands; ///< by the name of a process or of its program
    std::map<std::string, TagSettings, std::less<>> tags;
    std::optional<Bytes> machine_budget; ///< of host memory, for all users together
    std::optional<Bytes> user_budget;    ///< for each user
    std::vector<std::string> warnings;   ///< of what the next release will refuse, with file and line
};

/// Whom a policy is for.
struct Subject {
    std::string user;
    std::string name; ///< that the process has, or empty
    ProgramName program;
};

/// What `file` says of the process, section by section: one for the user goes before the general one, one for
/// the command before both; of these the last of: its program, its script, both as they are shown, its name.
/// A section that exempts the user goes before all.
[[nodiscard]] Settings settings_for(const Configuration& file, const Subject& subject);

/// What holds for one process.
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

/// What one file alone comes to.
[[nodiscard]] Policy policy_of(const Configuration& file, const Subject& subject);

/// What holds where the administrator's file comes to `limits` and the user's own to `wishes`. The user's may
/// lead further down and earlier, but keep nothing longer on the GPU, nor more in host memory, than the
/// administrator's: at every time the deeper rung holds, and the smaller budget. Whom the administrator has
/// exempted as a user stays awake. A directory is the user's to
/// choose only where the administrator names none: one that cannot be used would keep contents in host
/// memory.
[[nodiscard]] Policy merge(const Policy& limits, const Policy& wishes);

} // namespace gpu_sleep::control::policy
