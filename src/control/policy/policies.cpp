// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading the files that may be trusted, and putting the policies together.

#include "control/policy/policies.hpp"

#include "base/files.hpp"
#include "base/text.hpp"

#include <pwd.h>

#include <cstdlib>

namespace gpu_sleep::control::policy {
namespace {

constexpr const char* k_system_file = "/etc/gpu-sleep.toml";
constexpr std::size_t k_max_file_bytes = 1 << 20;

Error refusal(const std::filesystem::path& path, std::string_view why) {
    return make_error(ErrorCode::not_permitted, "{} is not used: {}", path.string(), why);
}

/// Refuses what is not of `type`, or what others than `owner` could have changed.
Result<void> check_trusted(const UniqueFd& place, mode_t type, const std::filesystem::path& path,
                           uid_t owner) {
    struct stat status {};
    if (!place || ::fstat(place.get(), &status) != 0)
        return errno_error(ErrorCode::io_failed, errno, "open", path.string());
    if ((status.st_mode & S_IFMT) != type)
        return refusal(path, type == S_IFDIR ? "it is not a folder" : "it is not a regular file");
    const bool may_be_roots = status.st_uid == 0 && owner == ::geteuid();
    if (status.st_uid != owner && !may_be_roots) return refusal(path, "it belongs to somebody else");
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return refusal(path, "users other than its owner may write to it (chmod go-w)");
    return {};
}

std::string home_of(uid_t user) {
    std::array<char, 4096> buffer;
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found) == 0 && found) return found->pw_dir;
    return {};
}

std::string absolute_variable(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? value : "";
}

/// Opens a file for reading, once it is known to be a plain one that only `owner` may write to, or root. One
/// of another user's must be that user's own: a link of theirs may lead to root's. Errors: not_permitted,
/// io_failed.
Result<UniqueFd> open_trusted(const std::filesystem::path& path, uid_t owner) {
    const UniqueFd place(
        open_file(AT_FDCWD, path.c_str(), O_PATH | O_CLOEXEC)); // to open a device may do something
    GPU_SLEEP_TRY(check_trusted(place, S_IFREG, path, owner));
    UniqueFd file(
        open_file(AT_FDCWD, fmt::format("/proc/self/fd/{}", place.get()).c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return errno_error(ErrorCode::io_failed, errno, "open", path.string());
    return file;
}

/// Opens a program to be run (O_PATH), which only root or `owner` could have put there: nobody else owns it
/// or a folder above it, or may write to one. Errors: not_permitted (names what is wrong), io_failed.
Result<UniqueFd> open_trusted_program(const std::filesystem::path& path, uid_t owner) {
    std::error_code failure;
    const auto real = std::filesystem::canonical(path, failure); // so a link on the way is an intruder's
    if (failure) return errno_error(ErrorCode::io_failed, failure.value(), "open", path.string());
    auto way = real.root_path();
    UniqueFd place(open_file(AT_FDCWD, way.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (const auto& name : real.relative_path()) {
        GPU_SLEEP_TRY(check_trusted(place, S_IFDIR, way, owner));
        way /= name;
        place = UniqueFd(open_file(place.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    }
    GPU_SLEEP_TRY(check_trusted(place, S_IFREG, way, owner));
    return place;
}

/// Where the user's own file is: of this process's user as its environment says, of others beneath their home
/// directory. Empty if that is not known. May ask the network.
std::filesystem::path user_file(uid_t user) {
    constexpr const char* k_name = "gpu-sleep.toml";
    const bool is_own = user == ::geteuid();
    if (const auto own = is_own ? absolute_variable("XDG_CONFIG_HOME") : std::string(); !own.empty())
        return std::filesystem::path(own) / k_name;
    auto home = is_own ? absolute_variable("HOME") : std::string();
    if (home.empty()) home = home_of(user);
    return home.empty() ? std::filesystem::path() : std::filesystem::path(home) / ".config" / k_name;
}

/// Whether a section names a directory, which may hold for any user's processes.
bool names_directory(const Configuration& file) {
    const auto names = [](const auto& section) { return section.second.directory.has_value(); };
    return file.reclaim.directory || std::ranges::any_of(file.users, names) ||
           std::ranges::any_of(file.commands, names);
}

} // namespace

Result<std::optional<Configuration>> read_configuration(const std::filesystem::path& path, Author author,
                                                        uid_t owner, bool has_directory) {
    const auto file = open_trusted(path, owner);
    if (!file && (file.error().driver_status == ENOENT || file.error().driver_status == ENOTDIR))
        return std::optional<Configuration>();
    if (!file) return file.error();
    const auto text = read_open_file(file->get(), k_max_file_bytes);
    if (!text && errno == EFBIG) return refusal(path, "it is longer than " + format_bytes(k_max_file_bytes));
    if (!text) return errno_error(ErrorCode::io_failed, errno, "read", path.string());
    auto read = GPU_SLEEP_TRY(parse_configuration(*text, path.string(), author, has_directory));
    return std::optional(std::move(read));
}

Result<void> Policies::load(const Sources& sources) {
    if (sources.ladder) {
        limits_.reclaim.idle = sources.ladder;
        return {};
    }
    otherwise_ = sources.otherwise;
    const auto own = ::geteuid();
    const auto system = sources.config.value_or(k_system_file);
    auto limits = read(system, Author::administrator, sources.config ? own : 0);
    if (limits && !*limits && sources.config)
        limits = make_error(ErrorCode::io_failed, "{}: there is no such file", system.string());
    if (!limits) return std::move(limits).error();
    if (*limits) limits_ = **std::move(limits);
    if (limits_.notify) {
        auto program = open_trusted_program(*limits_.notify, own);
        if (!program && (own == 0 || sources.config)) // others need not be able to reach it
            return make_error(ErrorCode::invalid_argument, "{}: reclaim.notify: {}", system.string(),
                              program.error().message);
        if (program) notify_ = *std::move(program);
    }
    const auto mine = user_file(own);
    auto wishes = GPU_SLEEP_TRY(mine.empty() ? Result<std::optional<Configuration>>(std::nullopt)
                                             : read(mine, Author::user, own, names_directory(limits_)));
    wishes_[own] = wishes.value_or(Configuration());
    return {};
}

Result<std::optional<Configuration>> Policies::read(const std::filesystem::path& path, Author author,
                                                    uid_t owner, bool has_directory) {
    auto file = read_configuration(path, author, owner, has_directory);
    if (file && *file) files_.push_back(path.string());
    return file;
}

const Configuration& Policies::file_of(uid_t user) {
    const auto known = wishes_.find(user);
    if (known != wishes_.end()) return known->second;
    auto& file = wishes_[user];
    const auto path = otherwise_ ? user_file(user) : std::filesystem::path();
    if (path.empty()) return file;
    auto wishes = read(path, Author::user, user, names_directory(limits_));
    if (!wishes)
        complaints_.push_back(wishes.error().message);
    else if (*wishes)
        file = **std::move(wishes);
    return file;
}

Policy Policies::of(const Process& process, const std::string& name) {
    const auto known = names_.find(process.uid);
    const auto& user = known != names_.end()
                           ? known->second
                           : names_.emplace(process.uid, user_name(process.uid)).first->second;
    const auto& subject = subjects_.emplace_back(Subject{user, name, program_of(process)});
    const auto& wishes = file_of(process.uid);
    auto merged = merge(policy_of(limits_, subject), policy_of(wishes, subject));
    const auto says_when = [&](const Configuration& file) {
        const auto settings = settings_for(file, subject);
        return settings.idle || settings.exempt.value_or(false);
    };
    if (otherwise_ && !says_when(limits_) && !says_when(wishes)) merged.ladder = *otherwise_;
    return merged;
}

void Policies::complain_of_unused() {
    for (const auto& [name, section] : limits_.users)
        if (const auto user = parse_user(name); !user || user_name(*user) != name)
            complaints_.push_back(
                printable(fmt::format("[user.{}] of {} names no user", name, limits_.name)));
    std::vector<const Configuration*> files{&limits_};
    for (const auto& [user, wishes] : wishes_) files.push_back(&wishes);
    for (const auto* const file : files)
        for (const auto& [name, section] : file->commands) {
            const auto fits = [&word = name](const Subject& subject) {
                return is_called(subject.program, word) || subject.name == word;
            };
            if (std::ranges::none_of(subjects_, fits))
                complaints_.push_back(
                    printable(fmt::format("[command.{}] of {} matches no process", name, file->name)));
        }
}

Budgets Policies::budgets(const std::vector<Process>& processes) {
    Budgets budgets;
    budgets.machine = limits_.machine_budget;
    for (const auto& process : processes)
        if (const auto own = of(process, "").host_budget) budgets.users[process.uid] = *own;
    return budgets;
}

} // namespace gpu_sleep::control::policy
