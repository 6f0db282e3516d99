// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The sections and their keys.

#include "control/policy/config_reader.hpp"

#include "base/text.hpp"

#include <fmt/format.h>

namespace gpu_sleep::control::policy {
namespace {

/// Reads a value into a place. Returns what is wrong with it, or nothing.
template <class Place>
using Read = std::string (*)(const Value& value, Place& place);

/// A key of a section of the kind `Section`.
template <class Section>
struct Key {
    std::string_view name;
    Read<Section> read;
    bool is_for_users_section = false; ///< and in no other
};

std::string kind_of(const Value& value) {
    if (std::holds_alternative<bool>(value)) return "a boolean";
    if (std::holds_alternative<std::string>(value)) return "a string";
    if (std::holds_alternative<std::vector<std::string>>(value)) return "a list";
    const auto* const other = std::get_if<OtherValue>(&value);
    return other ? other->kind : "an empty section";
}

/// `text` is what `parse` makes of a text.
template <class T, class Parse>
std::string read_text(const Value& value, std::optional<T>& place, Parse&& parse, std::string_view form) {
    const auto* const text = std::get_if<std::string>(&value);
    if (text == nullptr)
        return fmt::format("this is {}, and must be a string: write it as {}", kind_of(value), form);
    auto read = parse(*text);
    if (!read) return read.error().message;
    place = *std::move(read);
    return {};
}

std::string read_bool(const Value& value, std::optional<bool>& place) {
    if (const auto* const is_set = std::get_if<bool>(&value)) {
        place = *is_set;
        return {};
    }
    return fmt::format("this is {}, and must be true or false", kind_of(value));
}

std::string read_size(const Value& value, std::optional<Bytes>& place) {
    return read_text(value, place, parse_bytes, "\"64GiB\"");
}

std::string read_idle(const Value& value, Settings& settings) {
    std::vector<std::string> texts;
    if (const auto* const text = std::get_if<std::string>(&value))
        texts = {*text};
    else if (const auto* const list = std::get_if<std::vector<std::string>>(&value))
        texts = *list;
    else
        return fmt::format("this is {}, and must be a time, or a list of times: write it as \"15m\" or "
                           "[\"15m:host\", \"4h:file\"]",
                           kind_of(value));
    if (texts == std::vector<std::string>{"never"}) {
        settings.exempt = true;
        return {};
    }
    std::vector<Rung> rungs;
    for (const auto& text : texts) {
        const auto rung = parse_rung(text);
        if (!rung) return rung.error().message;
        rungs.push_back(*rung);
    }
    auto ladder = make_ladder(std::move(rungs));
    if (!ladder) return ladder.error().message;
    settings.idle = *std::move(ladder);
    return {};
}

Result<std::string> parse_directory(const std::string& text) {
    if (!text.starts_with('/') || text.find('\0') != std::string::npos)
        return make_error(ErrorCode::invalid_argument, "'{}' is not an absolute path", text);
    return text;
}

Result<model::Store> parse_store_word(const std::string& text) {
    if (const auto store = model::parse_store(text)) return *store;
    return make_error(ErrorCode::invalid_argument, "'{}' is not a store; the stores are host and file", text);
}

constexpr Key<Settings> k_process_keys[] = {
    {"idle", read_idle},
    {"min-awake", [](const Value& value,
                     Settings& to) { return read_text(value, to.min_awake, parse_duration, "\"1m\""); }},
    {"exempt", [](const Value& value, Settings& to) { return read_bool(value, to.exempt); }},
    {"directory",
     [](const Value& value, Settings& to) {
         return read_text(value, to.directory, parse_directory, "\"/var/tmp/gpu-sleep-{user}\"");
     }},
    {"spill", [](const Value& value, Settings& to) { return read_bool(value, to.spill); }},
    {"host-budget", [](const Value& value, Settings& to) { return read_size(value, to.host_budget); }, true},
};

constexpr Key<TagSettings> k_tag_keys[] = {
    {"store", [](const Value& value,
                 TagSettings& to) { return read_text(value, to.store, parse_store_word, "\"file\""); }},
    {"exempt", [](const Value& value, TagSettings& to) { return read_bool(value, to.exempt); }},
};

constexpr Key<Configuration> k_host_keys[] = {
    {"budget", [](const Value& value, Configuration& to) { return read_size(value, to.machine_budget); }},
    {"per-user", [](const Value& value, Configuration& to) { return read_size(value, to.user_budget); }},
};

template <class Keys>
std::vector<std::string_view> names_of(const Keys& keys, bool of_user) {
    std::vector<std::string_view> names;
    for (const auto& key : keys)
        if (of_user || !key.is_for_users_section) names.push_back(key.name);
    return names;
}

/// Suggests a correction of `word`, as "; did you mean 'idle'?", or names all of `known`.
std::string suggestion(std::string_view word, const std::vector<std::string_view>& known) {
    if (const auto meant = nearest(word, known); !meant.empty())
        return fmt::format("; did you mean '{}'?", meant);
    return fmt::format("; there {} {}", known.size() == 1 ? "is" : "are", fmt::join(known, ", "));
}

/// Puts the value of `name` into `section`.
template <class Section, class Keys>
std::string put(Section& section, const Keys& keys, const std::string& name, const Value& value,
                bool of_user) {
    for (const auto& key : keys)
        if (key.name == name && (of_user || !key.is_for_users_section)) return key.read(value, section);
    return "there is no such key" + suggestion(name, names_of(keys, of_user));
}

std::string put_named(Configuration& file, const Entry& entry, Author author) {
    const auto& section = entry.path[0];
    const auto& name = entry.path[1];
    const auto& key = entry.path[2];
    if (section == "command") return put(file.commands[name], k_process_keys, key, entry.value, false);
    if (section == "user") {
        if (author == Author::user) return "only the administrator's file has sections for users";
        return put(file.users[name], k_process_keys, key, entry.value, true);
    }
    if (!model::is_valid_tag(name)) return fmt::format("'{}' is not a tag", name);
    return put(file.tags[name], k_tag_keys, key, entry.value, false);
}

} // namespace

std::string put_entry(Configuration& file, const Entry& entry, Author author) {
    const std::vector<std::string_view> plain{"reclaim", "host"};
    const std::vector<std::string_view> named{"user", "command", "tag"};
    const auto is_in = [](const auto& list, const std::string& word) {
        return std::ranges::find(list, word) != list.end();
    };
    const auto depth = is_in(plain, entry.path.front()) ? 2U : 3U;
    const auto is_key_of = [&](const auto& keys) {
        const auto names = names_of(keys, false);
        return std::ranges::find(names, entry.path.front()) != names.end();
    };
    const bool is_key = is_key_of(k_process_keys);
    if (entry.path.size() == 1 && (is_key || is_key_of(k_host_keys)))
        return fmt::format("it is in no section: write [{}] above it", is_key ? "reclaim" : "host");
    if (!is_in(plain, entry.path.front()) && !is_in(named, entry.path.front()))
        return "there is no such section" +
               suggestion(entry.path.front(), {"reclaim", "host", "user", "command", "tag"});
    if (entry.path.size() < depth && std::holds_alternative<EmptySection>(entry.value)) return {};
    if (entry.path.size() < depth)
        return depth == 2 ? fmt::format("it should be a section, [{}], with keys", entry.path.front())
                          : fmt::format("it should be sections such as [{}.NAME]", entry.path.front());
    if (entry.path.size() > depth + 1 && is_in(named, entry.path[1]))
        return fmt::format("it is in the section [{}]: write [{}.NAME] above it", entry.path[0],
                           entry.path[1]);
    if (entry.path.size() > depth) return "there is no such key";
    if (depth == 3) return put_named(file, entry, author);
    if (entry.path.front() == "reclaim" && entry.path[1] == "notify") {
        if (author == Author::user) return "only the administrator's file names a program to run";
        return read_text(entry.value, file.notify, parse_directory, "\"/etc/gpu-sleep-notify\"");
    }
    if (entry.path.front() == "reclaim")
        return put(file.reclaim, k_process_keys, entry.path[1], entry.value, false);
    if (author == Author::user && entry.path[1] == "budget")
        return "only the administrator's file has a budget for the machine; use per-user for your own";
    return put(file, k_host_keys, entry.path[1], entry.value, true);
}

} // namespace gpu_sleep::control::policy
