// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Ladders, and what sections and files come to.

#include "control/policy/policy.hpp"

#include "base/text.hpp"

#include <fmt/format.h>

namespace gpu_sleep::control::policy {
namespace {

constexpr std::array k_tiers{Tier::host, Tier::file, Tier::deep}; // that a rung may have

template <class T>
void take_over(std::optional<T>& to, const std::optional<T>& from) {
    if (from) to = from;
}

/// Overrides `to` by what `more` sets. `section` is its name, for people.
void add(Settings& to, const Settings& more, const std::string& section, const std::string& file) {
    const auto name_of = [&](const char* key) {
        return printable(fmt::format("{}.{} of {}", section, key, file));
    };
    const auto take = [&](auto place, const char* key) {
        if (more.*place) to.grounds.note(key, name_of(key));
        take_over(to.*place, more.*place);
    };
    // A section that says when to sleep ends an exemption, and the other way round.
    if (more.idle && !more.exempt && to.exempt.value_or(false))
        to.grounds.overridden.push_back(std::exchange(to.grounds.said_by["exempt"], {}) + ", by " +
                                        name_of("idle"));
    if (more.idle && !more.exempt) to.exempt.reset();
    take(&Settings::idle, "idle");
    take(&Settings::exempt, "exempt");
    take(&Settings::min_awake, "min-awake");
    take(&Settings::directory, "directory");
    take(&Settings::spill, "spill");
    take(&Settings::host_budget, "host-budget");
}

template <class Sections>
void add_section(Settings& to, const Sections& sections, const std::string& kind, const std::string& name,
                 const std::string& file) {
    if (const auto found = sections.find(name); found != sections.end())
        add(to, found->second, kind + "." + name, file);
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

std::string_view to_string(Tier tier) noexcept {
    return model::word_of(tier, {"awake", "host", "file", "deep"});
}

Result<Rung> parse_rung(std::string_view text) {
    const auto colon = text.find(':');
    const auto time = GPU_SLEEP_TRY(parse_duration(text.substr(0, colon)));
    if (colon == std::string_view::npos) return Rung{time, Tier::host};
    const auto word = text.substr(colon + 1);
    const auto* const tier =
        std::ranges::find_if(k_tiers, [=](Tier each) { return to_string(each) == word; });
    if (tier == k_tiers.end())
        return make_error(ErrorCode::invalid_argument,
                          "'{}' is not a place: the places are host, file and deep", word);
    return Rung{time, *tier};
}

Result<Ladder> make_ladder(std::vector<Rung> rungs) {
    std::ranges::sort(rungs, {}, &Rung::idle);
    for (std::size_t i = 1; i < rungs.size(); ++i) {
        const auto& [idle, tier] = rungs[i];
        if (idle == rungs[i - 1].idle)
            return make_error(ErrorCode::invalid_argument, "two steps have the same time, {}", to_text(idle));
        if (tier <= rungs[i - 1].tier)
            return make_error(ErrorCode::invalid_argument, "'{}' after {} must be deeper than '{}'",
                              to_string(tier), to_text(idle), to_string(rungs[i - 1].tier));
    }
    return rungs;
}

std::optional<Rung> rung_at(const Ladder& ladder, double idle_seconds) noexcept {
    std::optional<Rung> reached;
    for (const auto& rung : ladder)
        if (idle_seconds >= seconds_of(rung.idle)) reached = rung;
    return reached;
}

Ladder deeper_of(const Ladder& one, const Ladder& other) {
    std::vector<Rung> all = one;
    all.insert(all.end(), other.begin(), other.end());
    std::ranges::stable_sort(all, {}, &Rung::idle);
    Ladder ladder;
    for (const auto& rung : all) {
        if (!ladder.empty() && rung.tier <= ladder.back().tier) continue;
        if (!ladder.empty() && ladder.back().idle == rung.idle) ladder.pop_back();
        ladder.push_back(rung);
    }
    return ladder;
}

bool leads_to_files(const Ladder& ladder) noexcept {
    return std::ranges::any_of(ladder, [](const Rung& rung) { return rung.tier == Tier::file; });
}

std::string to_text(Milliseconds time) {
    using Unit = std::pair<std::int64_t, const char*>;
    if (time.count() == 0) return "0s";
    for (const auto& [milliseconds, name] :
         {Unit{86'400'000, "d"}, Unit{3'600'000, "h"}, Unit{60'000, "m"}, Unit{1'000, "s"}})
        if (time.count() % milliseconds == 0) return fmt::format("{}{}", time.count() / milliseconds, name);
    return fmt::format("{}ms", time.count());
}

std::string to_text(const Ladder& ladder) {
    std::string text;
    for (const auto& rung : ladder)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_text(rung.idle), to_string(rung.tier));
    return text.empty() ? "never" : text;
}

void Grounds::note(const std::string& key, const std::string& setting) {
    auto& said = said_by[key];
    if (!said.empty() && said != setting) overridden.push_back(said + ", by " + setting);
    said = setting;
}

Settings settings_for(const Configuration& file, const Subject& subject) {
    Settings settings;
    settings.host_budget = file.user_budget;
    if (file.user_budget) settings.grounds.note("host-budget", printable("host.per-user of " + file.name));
    add(settings, file.reclaim, "reclaim", file.name);
    const auto user = file.users.find(subject.user);
    settings.is_final = user != file.users.end() && user->second.exempt.value_or(false);
    if (!settings.is_final) add_section(settings, file.users, "user", subject.user, file.name);
    const auto& called = subject.program;
    for (const auto& name : {called.program, called.script, to_string(called), subject.name})
        if (!name.empty()) add_section(settings, file.commands, "command", name, file.name);
    if (settings.is_final) add_section(settings, file.users, "user", subject.user, file.name);
    auto& [said_by, overridden] = settings.grounds;
    if (settings.exempt.value_or(false) && settings.idle)
        overridden.push_back(said_by["idle"] + ", by " + said_by["exempt"]);
    if (settings.exempt.value_or(false)) said_by["idle"] = said_by["exempt"];
    return settings;
}

Policy policy_of(const Configuration& file, const Subject& subject) {
    const auto settings = settings_for(file, subject);
    Policy policy;
    policy.grounds = settings.grounds;
    policy.is_final = settings.is_final;
    if (settings.exempt.value_or(false))
        policy.exempt_by = settings.grounds.said_by.at("idle");
    else
        policy.ladder = settings.idle.value_or(Ladder());
    policy.min_awake = settings.min_awake;
    policy.directory = in_place_of_user(settings.directory.value_or(""), subject.user);
    policy.spill = settings.spill.value_or(false);
    policy.tags = file.tags;
    policy.host_budget = settings.host_budget;
    return policy;
}

Policy merge(const Policy& limits, const Policy& wishes) {
    auto merged = limits;
    auto& overridden = merged.grounds.overridden;
    overridden.insert(overridden.end(), wishes.grounds.overridden.begin(), wishes.grounds.overridden.end());
    // Notes which of two settings has no effect, if one has none; `holds` is what came of them.
    const auto settle = [&](const char* key, const auto& holds, const auto& limit, const auto& wish) {
        const auto& said_by = limits.grounds.said_by;
        const auto mine = wishes.grounds.said_by.find(key);
        auto found = said_by.find(key);
        if (mine == wishes.grounds.said_by.end() || limit == wish) return;
        if (found == said_by.end()) found = said_by.find("idle");
        if (found == said_by.end()) return;
        if (holds == limit) overridden.push_back(mine->second + ", by " + found->second);
        if (holds == wish && found->first == key)
            overridden.push_back(found->second + ", by " + mine->second);
    };
    merged.ladder = limits.is_final ? Ladder() : deeper_of(limits.ladder, wishes.ladder);
    settle("idle", merged.ladder, limits.ladder, wishes.ladder);
    auto min_awake = limits.min_awake;
    if (!limits.ladder.empty()) min_awake = min_awake.value_or(Milliseconds(0));
    if (limits.ladder.empty())
        take_over(merged.min_awake, wishes.min_awake);
    else if (wishes.min_awake) // a longer one would keep it on the GPU
        merged.min_awake = smaller_of(min_awake, wishes.min_awake);
    settle("min-awake", merged.min_awake, min_awake, wishes.min_awake);
    if (merged.exempt_by.empty()) merged.exempt_by = wishes.exempt_by;
    if (limits.directory.empty()) merged.directory = wishes.directory;
    settle("directory", merged.directory, limits.directory, wishes.directory);
    merged.spill |= wishes.spill;
    settle("spill", merged.spill, limits.spill, wishes.spill);
    merged.host_budget = smaller_of(limits.host_budget, wishes.host_budget);
    settle("host-budget", merged.host_budget, limits.host_budget, wishes.host_budget);
    for (const auto& [name, wish] : wishes.tags) {
        auto& tag = merged.tags[name];
        if (wish.store) tag.store = std::max(tag.store.value_or(model::Store::host), *wish.store);
        // To stay on the GPU is the user's to choose only where nothing is to leave it.
        if (wish.exempt && (!*wish.exempt || limits.ladder.empty())) tag.exempt = wish.exempt;
    }
    return merged;
}

} // namespace gpu_sleep::control::policy
