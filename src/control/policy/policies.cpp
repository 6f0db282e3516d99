// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading the files, and putting the policies together.

#include "control/policy/policies.hpp"

#include "base/text.hpp"

namespace gpu_sleep::control::policy {
namespace {

/// Whether a section names a directory, which may hold for any user's processes.
bool names_directory(const Configuration& file) {
    const auto names = [](const auto& section) { return section.second.directory.has_value(); };
    return file.reclaim.directory || std::ranges::any_of(file.users, names) ||
           std::ranges::any_of(file.commands, names);
}

} // namespace

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
