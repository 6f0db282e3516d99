// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where the files lie, and in which order they are written: what is noted comes first, and goes last.

#include "cli/login/environment.hpp"

#include "cli/login/careful_files.hpp"
#include "cli/login/texts.hpp"
#include "cli/preload.hpp"
#include "cli/show/json.hpp"

#include <nlohmann/json.hpp>

#include <cstdlib>

namespace gpu_sleep::cli {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

constexpr mode_t k_read_mode = 0644;
constexpr mode_t k_run_mode = 0755;
constexpr std::string_view k_kernels = "kernels";

/// A file that is all ours.
struct OwnFile {
    fs::path path;
    mode_t mode;
    std::function<std::string(const std::string& library)> text;
};

/// All that enabling touches.
struct Layout {
    fs::path script;                        ///< read by POSIX shells; it has the records
    std::vector<OwnFile> own;               ///< besides
    Paths profiles;                         ///< which get a line that reads the script
    Paths kernel_directories;               ///< that have directories with a kernel.json each
    bool makes_profile = false;             ///< the last profile is made if it is not there
    Visitors visitors = Visitors::by_umask; ///< of directories that are made
};

fs::path directory_of(const char* variable, const fs::path& otherwise) {
    const char* value = std::getenv(variable);
    return value && *value == '/' ? fs::path(value) : otherwise;
}

bool is_there(const fs::path& file) {
    std::error_code failure;
    return fs::exists(file, failure);
}

bool is_own(const fs::path& file, uid_t or_of = ::geteuid()) {
    struct stat status = {};
    return ::stat(file.c_str(), &status) == 0 && (status.st_uid == ::geteuid() || status.st_uid == or_of);
}

Layout layout_of_machine(const fs::path& root) {
    Layout layout;
    layout.script = root / "etc/profile.d/gpu-sleep.sh";
    layout.own = {
        {root / "etc/profile.d/gpu-sleep.csh", k_read_mode, login_csh_script},
        {root / "etc/systemd/user-environment-generators/60-gpu-sleep", k_run_mode, login_generator}};
    layout.kernel_directories = {root / "usr/local/share/jupyter" / k_kernels,
                                 root / "usr/share/jupyter" / k_kernels};
    layout.visitors = Visitors::all;
    return layout;
}

/// Those that login shells read: bash the first of three alone.
void add_profiles(Layout& layout, const fs::path& home) {
    for (const auto* name : {".bash_profile", ".bash_login", ".profile"})
        if (is_there(home / name)) layout.profiles.push_back(home / name);
    const auto zsh = directory_of("ZDOTDIR", home) / ".zprofile";
    if (is_there(zsh)) layout.profiles.push_back(zsh);
    const char* shell = std::getenv("SHELL");
    const bool uses_zsh = shell && std::string_view(shell).ends_with("/zsh");
    layout.makes_profile = uses_zsh ? !is_there(zsh) : layout.profiles.empty();
    if (layout.makes_profile) layout.profiles.push_back(uses_zsh ? zsh : home / ".profile");
}

/// Where Jupyter looks for kernels that are the user's own. Source: `jupyter --paths`.
Paths kernel_directories_of_user(const fs::path& home) {
    Paths data{
        directory_of("JUPYTER_DATA_DIR", directory_of("XDG_DATA_HOME", home / ".local/share") / "jupyter")};
    const char* paths = std::getenv("JUPYTER_PATH");
    for (std::string_view rest = paths ? paths : ""; !rest.empty();) {
        const auto end = std::min(rest.find(':'), rest.size());
        if (rest.front() == '/') data.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    for (const auto* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"})
        if (const auto directory = directory_of(variable, {}); !directory.empty())
            data.push_back(directory / "share/jupyter");
    const char* search_path = std::getenv("PATH");
    const auto jupyter = find_program("jupyter", search_path ? search_path : "");
    const auto* const file = std::get_if<std::string>(&jupyter);
    const auto prefix = file ? fs::path(*file).parent_path().parent_path() : fs::path();
    // The others are the machine's, also when root asks for itself.
    if (prefix.is_absolute() && prefix != "/" && prefix != "/usr" && prefix != "/usr/local")
        data.push_back(prefix / "share/jupyter");
    for (auto& directory : data) directory /= k_kernels;
    return data;
}

Result<Layout> layout_of_user() {
    const auto home = directory_of("HOME", {});
    if (home.empty() || !is_there(home))
        return make_error(ErrorCode::invalid_argument, "HOME names no directory");
    if (!is_own(home))
        return make_error(ErrorCode::invalid_argument, "{} belongs to another user: run this as that user",
                          home.native());
    Layout layout;
    // It is found again whatever the environment is then, and says where the others are.
    layout.script = home / ".config/gpu-sleep/login.sh";
    layout.own = {{directory_of("XDG_CONFIG_HOME", home / ".config") / "environment.d/60-gpu-sleep.conf",
                   k_read_mode, login_variables}};
    add_profiles(layout, home);
    layout.kernel_directories = kernel_directories_of_user(home);
    if (layout.script.native().find_first_of("'\n") != std::string::npos)
        return make_error(ErrorCode::invalid_argument, "there is a quotation mark or a line break in {}",
                          layout.script.native());
    return layout;
}

Result<Layout> layout_of(const LoginScope& scope) {
    return scope.is_machine ? Result<Layout>(layout_of_machine(scope.root)) : layout_of_user();
}

void add(Paths& paths, const fs::path& path) {
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
}

/// The specifications of kernels that are there, and are this user's, or of another.
Paths kernels_in(const Paths& directories, uid_t or_of = ::geteuid()) {
    Paths found;
    for (const auto& directory : directories) {
        std::error_code failure;
        for (fs::directory_iterator at(directory, failure), end; !failure && at != end; at.increment(failure))
            if (const auto file = at->path() / "kernel.json"; is_own(file, or_of)) add(found, file);
    }
    std::sort(found.begin(), found.end());
    return found;
}

/// What `file` says, or nothing if there is none. Errors: invalid_argument: it is not ours.
Result<std::optional<std::string>> read_own(const fs::path& file, bool (*is_ours)(std::string_view)) {
    auto contents = read_carefully(file);
    if (contents && *contents && !is_ours(**contents))
        return make_error(ErrorCode::invalid_argument, "{} already exists, and gpu-sleep did not write it",
                          file.native());
    return contents;
}

/// Notes what is changed, where one line can hold it.
void note(LoginRecords& records, const fs::path& file) {
    if (file.native().find('\n') == std::string::npos) add(records.changed, file);
}

/// Writes what differs.
Result<void> write_if_new(const fs::path& file, const std::optional<std::string>& before,
                          const std::string& now, mode_t mode) {
    return before == now ? Result<void>() : write_carefully(file, now, mode);
}

struct Change {
    fs::path file;
    std::string before, now;
};

/// The kernels that are to be changed, or are as they shall be.
Result<std::vector<Change>> kernel_changes(const Layout& layout, const std::string& library) {
    std::vector<Change> changes;
    for (const auto& file : kernels_in(layout.kernel_directories)) {
        const auto before = GPU_SLEEP_TRY(read_carefully(file));
        if (!before || file.native().find('\n') != std::string::npos) continue;
        if (auto now = enabled_kernel(*before, library)) changes.push_back({file, *before, *std::move(now)});
    }
    return changes;
}

Result<void> write_profiles(const Layout& layout) {
    for (const auto& file : layout.profiles) {
        const auto before = GPU_SLEEP_TRY(read_carefully(file));
        const auto now = before.value_or(std::string());
        // A line that somebody has moved stays where it is.
        if (without_login_line(now) != now) continue;
        GPU_SLEEP_TRY(write_carefully(file, with_login_line(now, layout.script), k_read_mode));
    }
    return {};
}

/// The records of `script`, those that are still about files of this user. A tree may have been copied with
/// them: of the machine's files those below another root are another machine's.
LoginRecords records_of(const LoginScope& scope, const std::string& script) {
    auto records = read_records(script);
    const auto is_outside = [&](const fs::path& file) {
        const auto inside = file.lexically_relative(scope.root).native();
        return scope.is_machine && (inside.empty() || inside.starts_with(".."));
    };
    std::erase_if(records.made, is_outside);
    std::erase_if(records.changed, [&](const fs::path& file) {
        std::error_code failure;
        return is_outside(file) || !fs::is_regular_file(file, failure) || !is_own(file);
    });
    return records;
}

/// All files that may be ours or have a part of ours, the script apart; of kernels those of this user, or of
/// another.
Paths files_of(const Layout& layout, const LoginRecords& records, uid_t or_of = ::geteuid()) {
    Paths files;
    for (const auto& own : layout.own) add(files, own.path);
    const auto kernels = kernels_in(layout.kernel_directories, or_of);
    for (const auto* paths : {&layout.profiles, &kernels, &records.made, &records.changed})
        for (const auto& path : *paths) add(files, path);
    std::error_code failure;
    std::erase_if(files, [&](const fs::path& file) { return !fs::is_regular_file(file, failure); });
    return files;
}

/// What is left of `text` without us; nothing if all of it is ours.
std::optional<std::string> without_us(const std::string& text) {
    if (is_login_file(text)) return std::nullopt;
    auto kernel = disabled_kernel(text);
    return kernel ? std::move(kernel) : without_login_line(text);
}

/// Writes all of it, the script first, which records what else is written. Returns the files.
Result<Paths> write_all(const Layout& layout, const std::optional<std::string>& script,
                        const std::vector<Change>& kernels, const std::string& library,
                        LoginRecords& records) {
    GPU_SLEEP_TRY(make_directories(layout.script.parent_path(), layout.visitors, records.made));
    for (const auto& own : layout.own)
        GPU_SLEEP_TRY(make_directories(own.path.parent_path(), layout.visitors, records.made));
    if (layout.makes_profile) add(records.made, layout.profiles.back());
    Paths files{layout.script};
    for (const auto& change : kernels) add(records.changed, change.file);
    for (const auto& file : layout.profiles) note(records, file);
    for (const auto& own : layout.own) note(records, own.path);
    GPU_SLEEP_TRY(write_if_new(layout.script, script, login_script(library, records), k_read_mode));
    for (const auto& own : layout.own) {
        const auto before = GPU_SLEEP_TRY(read_own(own.path, is_login_file));
        GPU_SLEEP_TRY(write_if_new(own.path, before, own.text(library), own.mode));
        files.push_back(own.path);
    }
    GPU_SLEEP_TRY(write_profiles(layout));
    files.insert(files.end(), layout.profiles.begin(), layout.profiles.end());
    for (const auto& change : kernels) {
        GPU_SLEEP_TRY(write_if_new(change.file, change.before, change.now, k_read_mode));
        files.push_back(change.file);
    }
    return files;
}

/// Removes the directories that we have made, if they are empty.
void remove_made(const LoginRecords& records) {
    for (auto directory = records.made.rbegin(); directory != records.made.rend(); ++directory)
        remove_if_empty(*directory);
}

// ---- Containers

constexpr const char* k_version = "0.3.0"; // podman 4 reads none that is newer than 0.5.0
constexpr const char* k_kind = "gpu-sleep.io/agent";

/// In the directory of the library, and the same in a container.
constexpr const char* k_libraries[] = {"libgpu-sleep-agent.so", "libgpu-sleep-login.so",
                                       "libgpu-sleep-audit.so", "gpu-sleep-outside"};
constexpr const char* k_preload_file = "gpu-sleep.preload";

fs::path file_below(const fs::path& root) {
    return root / "etc/cdi/gpu-sleep.json";
}

/// What the installation lacks, such as a command that was not built, containers lack as well.
void add_mount(OrderedJson& mounts, const fs::path& file, const fs::path& in_container) {
    if (std::error_code failure; !fs::exists(file, failure)) return;
    mounts.push_back({{"hostPath", file.native()},
                      {"containerPath", in_container.native()},
                      {"options", {"ro", "nosuid", "nodev", "bind"}}});
}

std::string description(const fs::path& commands, const fs::path& libraries) {
    const fs::path prefix(GPU_SLEEP_PREFIX_IN_CONTAINERS);
    auto mounts = OrderedJson::array();
    add_mount(mounts, libraries / k_preload_file, "/etc/ld.so.preload");
    for (const auto* name : k_libraries) add_mount(mounts, libraries / name, prefix / "lib" / name);
    for (const auto* name : {GPU_SLEEP_COMMANDS}) add_mount(mounts, commands / name, prefix / "bin" / name);
    const OrderedJson device = {{"name", "all"}, {"containerEdits", {{"mounts", mounts}}}};
    return OrderedJson({{"cdiVersion", k_version}, {"kind", k_kind}, {"devices", {device}}}).dump(1) + "\n";
}

bool is_description(std::string_view text) {
    const auto json = OrderedJson::parse(text, nullptr, false);
    return json.is_object() && json.value("kind", OrderedJson()) == k_kind;
}

} // namespace

Result<Paths> enable_login(const LoginScope& scope, const std::string& library) {
    const auto layout = GPU_SLEEP_TRY(layout_of(scope));
    const auto script = GPU_SLEEP_TRY(read_own(layout.script, is_login_file));
    for (const auto& own : layout.own) static_cast<void>(GPU_SLEEP_TRY(read_own(own.path, is_login_file)));
    const auto kernels = GPU_SLEEP_TRY(kernel_changes(layout, library));
    auto records = read_records(script.value_or(std::string()));
    auto files = write_all(layout, script, kernels, library, records);
    if (files || script) return files;
    static_cast<void>(disable_login(scope)); // half of it is taken back
    remove_made(records);                    // if no script records them yet
    return files;
}

Result<void> disable_login(const LoginScope& scope) {
    const auto layout = GPU_SLEEP_TRY(layout_of(scope));
    const auto script = GPU_SLEEP_TRY(read_carefully(layout.script));
    const bool is_ours = script && is_login_file(*script);
    const auto records = is_ours ? records_of(scope, *script) : LoginRecords();
    for (const auto& file : files_of(layout, records)) {
        const auto before = GPU_SLEEP_TRY(read_carefully(file));
        if (!before) continue;
        const auto now = without_us(*before);
        const bool is_made = std::find(records.made.begin(), records.made.end(), file) != records.made.end();
        if (!now || (now->empty() && is_made))
            GPU_SLEEP_TRY(remove_carefully(file));
        else
            GPU_SLEEP_TRY(write_if_new(file, before, *now, k_read_mode));
    }
    if (is_ours) GPU_SLEEP_TRY(remove_carefully(layout.script));
    remove_made(records);
    return {};
}

Result<Paths> login_files(const LoginScope& scope) {
    const auto layout = GPU_SLEEP_TRY(layout_of(scope));
    Paths found;
    const auto script = read_carefully(layout.script);
    const auto records = script && *script ? records_of(scope, **script) : LoginRecords();
    auto files = files_of(layout, records, scope.is_machine ? 0 : ::geteuid());
    files.insert(files.begin(), layout.script);
    for (const auto& file : files)
        if (const auto text = read_carefully(file); text && *text && without_us(**text) != **text)
            found.push_back(file);
    return found;
}

Result<Paths> enable_containers(const fs::path& root, const fs::path& commands, const fs::path& library) {
    const auto file = file_below(root);
    static_cast<void>(GPU_SLEEP_TRY(read_own(file, is_description)));
    // The loader of a program that may not read it says nothing.
    if (root == "/") GPU_SLEEP_TRY(check_open_to_all(library.parent_path() / k_preload_file));
    Paths made;
    GPU_SLEEP_TRY(make_directories(file.parent_path(), Visitors::all, made));
    GPU_SLEEP_TRY(write_carefully(file, description(commands, library.parent_path()), k_read_mode));
    return Paths{file};
}

Result<void> disable_containers(const fs::path& root) {
    const auto file = file_below(root);
    if (!GPU_SLEEP_TRY(read_own(file, is_description))) return {};
    GPU_SLEEP_TRY(remove_carefully(file));
    remove_if_empty(file.parent_path());
    return {};
}

Result<Paths> container_files(const fs::path& root) {
    const auto text = GPU_SLEEP_TRY(read_carefully(file_below(root)));
    return text && is_description(*text) ? Paths{file_below(root)} : Paths();
}

} // namespace gpu_sleep::cli
