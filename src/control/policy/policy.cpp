// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From sections to a policy, and from two policies to one.

#include "control/policy/policy.hpp"

#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gpu_sleep::control::policy {
namespace {

template <class T>
void take_over(std::optional<T>& to, const std::optional<T>& from) {
    if (from) to = from;
}

/// What `more` says goes before what was said.
void add(Settings& to, const Settings& more, std::string section) {
    // Who is told when to sleep is exempt no more, and the other way round.
    if (more.idle && !more.exempt) to.exempt.reset();
    take_over(to.idle, more.idle);
    take_over(to.min_awake, more.min_awake);
    take_over(to.exempt, more.exempt);
    if (more.exempt) to.exempt_by = std::move(section);
    take_over(to.directory, more.directory);
    take_over(to.spill, more.spill);
    take_over(to.host_budget, more.host_budget);
}

template <class Sections>
void add_section(Settings& to, const Sections& sections, std::string_view kind, std::string_view name) {
    if (const auto found = sections.find(name); found != sections.end())
        add(to, found->second, fmt::format("[{}.{}]", kind, name));
}

template <class T>
std::optional<T> smaller_of(const std::optional<T>& one, const std::optional<T>& other) {
    if (!one || !other) return one ? one : other;
    return std::min(*one, *other);
}

std::string in_place_of_user(std::string directory, const std::string& user) {
    constexpr std::string_view k_user = "{user}";
    for (auto at = directory.find(k_user); at != std::string::npos;
         at = directory.find(k_user, at + user.size()))
        directory.replace(at, k_user.size(), user);
    return directory;
}

} // namespace

Settings settings_for(const Configuration& file, const Subject& subject) {
    auto settings = file.reclaim;
    settings.exempt_by = "[reclaim]";
    add_section(settings, file.users, "user", subject.user);
    const auto& called = subject.program;
    for (const auto& name : {called.program, called.script, to_string(called), subject.name})
        if (!name.empty()) add_section(settings, file.commands, "command", name);
    return settings;
}

Policy policy_of(const Configuration& file, const Subject& subject) {
    const auto settings = settings_for(file, subject);
    Policy policy;
    if (settings.exempt.value_or(false))
        policy.exempt_by = printable(fmt::format("{} of {}", settings.exempt_by, file.name));
    else
        policy.ladder = settings.idle.value_or(Ladder());
    policy.min_awake = settings.min_awake;
    policy.directory = in_place_of_user(settings.directory.value_or(""), subject.user);
    policy.spill = settings.spill.value_or(false);
    policy.tags = file.tags;
    policy.host_budget = settings.host_budget ? settings.host_budget : file.user_budget;
    return policy;
}

Policy merge(const Policy& limits, const Policy& wishes) {
    auto merged = limits;
    merged.ladder = deeper_of(limits.ladder, wishes.ladder);
    if (limits.ladder.empty())
        take_over(merged.min_awake, wishes.min_awake);
    else if (wishes.min_awake) // a longer one would keep it on the GPU
        merged.min_awake =
            smaller_of(std::optional(limits.min_awake.value_or(Milliseconds(0))), wishes.min_awake);
    if (merged.exempt_by.empty()) merged.exempt_by = wishes.exempt_by;
    if (limits.directory.empty()) merged.directory = wishes.directory;
    merged.spill |= wishes.spill;
    merged.host_budget = smaller_of(limits.host_budget, wishes.host_budget);
    for (const auto& [name, wish] : wishes.tags) {
        auto& tag = merged.tags[name];
        if (wish.store) tag.store = std::max(tag.store.value_or(model::Store::host), *wish.store);
        // To stay on the GPU is the user's to choose only where nothing is to leave it.
        if (wish.exempt && (!*wish.exempt || limits.ladder.empty())) tag.exempt = wish.exempt;
    }
    return merged;
}

} // namespace gpu_sleep::control::policy
