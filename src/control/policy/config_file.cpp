// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a text to entries, each with its line; the sections and their keys.

#include "control/policy/policy.hpp"

#include "base/text.hpp"

#include <fmt/format.h>

#ifdef GPU_SLEEP_HAVE_TOML
namespace {
/// Thrown by toml++ in place of an assertion: version 3.3 meets what it thought impossible after "[=".
/// Without its checks, which NDEBUG would take away, the behaviour would be undefined.
struct Unforeseen {};
[[noreturn]] void stop_parsing() {
    throw Unforeseen();
}
} // namespace
#undef NDEBUG
#define TOML_ASSERT(expression)                                                                              \
    do {                                                                                                     \
        if (!(expression)) stop_parsing();                                                                   \
    } while (false)
#define TOML_MAX_NESTED_VALUES 8
#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>
static_assert(TOML_LIB_MAJOR >= 3);
#endif

namespace gpu_sleep::control::policy {
namespace {

/// A value of a file that a setting can have; anything else is `other`, by the word that TOML has for it.
struct OtherValue {
    std::string kind;
};
/// A section without keys.
struct EmptySection {};
using Value = std::variant<bool, std::string, std::vector<std::string>, OtherValue, EmptySection>;

/// A key and its value, such as {"user", "alice", "min-awake"}, and the line in which it is.
struct Entry {
    std::vector<std::string> path;
    Value value;
    std::uint32_t line = 0;
};

#ifdef GPU_SLEEP_HAVE_TOML

Value value_of(const toml::node& node) {
    if (const auto* const text = node.as_string()) return text->get();
    if (const auto* const is_set = node.as_boolean()) return is_set->get();
    if (const auto* const list = node.as_array()) {
        std::vector<std::string> texts;
        for (const auto& each : *list) {
            const auto* const text = each.as_string();
            if (text == nullptr) return OtherValue{"a list of something other than strings"};
            texts.push_back(text->get());
        }
        return texts;
    }
    return OtherValue{node.is_number() ? "a number" : "a date"};
}

/// Adds what is in `table`, whose own path is `path`.
void add_entries(const toml::table& table, const std::vector<std::string>& path,
                 std::vector<Entry>& entries) {
    for (const auto& [key, node] : table) {
        auto longer = path;
        longer.emplace_back(key.str());
        constexpr std::size_t k_deepest = 3;
        const auto* const inner = node.as_table();
        const bool is_looked_into = inner != nullptr && longer.size() <= k_deepest && !inner->empty();
        if (is_looked_into) {
            add_entries(*inner, longer, entries);
            continue;
        }
        auto value = inner == nullptr ? value_of(node)
                     : inner->empty() ? Value(EmptySection())
                                      : OtherValue{"a section"};
        entries.push_back({std::move(longer), std::move(value), key.source().begin.line});
    }
}

/// Whether the line has a key of more parts than any file needs: the parser makes a section of each, one
/// within another, and nests calls as deep. It counts dots, wherever they are: only the parser knows what is
/// a text.
bool is_deep(std::string_view line) {
    constexpr std::size_t k_most = 64;
    std::size_t parts = 0;
    for (std::size_t i = 0; i < line.size(); ++i)
        if (line[i] == '.' && (i == 0 || line[i - 1] != '.')) ++parts;
    return parts > k_most;
}

/// Replaces characters that the parser may not handle. Returns an error of the line, or nothing. The parser
/// is given only ASCII: for other characters, version 3.3 has undefined behaviour. In a comment, they become
/// question marks.
std::string_view make_plain(std::string& text, std::size_t begin, std::size_t end) {
    const auto first = text.find_first_not_of(" \t", begin);
    const bool is_comment = first < end && text[first] == '#';
    for (auto i = begin; i < end; ++i) {
        const auto each = static_cast<unsigned char>(text[i]);
        constexpr unsigned char k_blank = 0x20;
        constexpr unsigned char k_delete = 0x7F;
        if ((each < k_blank && each != '\t' && each != '\r') || each == k_delete)
            return "there is a control character";
        if (each > k_delete && !is_comment)
            return "there is a non-ASCII character: write it in a string such as \"gr\\u00FC\\u00DF\"";
        if (each > k_delete) text[i] = '?';
    }
    if (is_deep({text.data() + begin, end - begin})) return "there are too many dots in one line";
    return {};
}

/// The line with that number, which counts from 1.
std::string_view line_of(std::string_view text, std::size_t number) {
    std::size_t begin = 0;
    for (std::size_t i = 1; i < number && begin != text.npos; ++i) {
        begin = text.find('\n', begin);
        if (begin != text.npos) ++begin;
    }
    return begin == text.npos ? std::string_view() : text.substr(begin, text.find('\n', begin) - begin);
}

/// How a line such as "idle = 15m" is to be written, as a further clause; empty for one of another kind.
std::string quoted_form(std::string_view line) {
    constexpr std::string_view k_letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:";
    const auto word_of = [](std::string_view part) {
        const auto begin = std::min(part.find_first_not_of(" \t\r"), part.size());
        const auto end = part.find_last_not_of(" \t\r") + 1;
        return part.substr(begin, std::max(begin, end) - begin);
    };
    const auto is_bare = [&](std::string_view word) {
        return !word.empty() && word.find_first_not_of(k_letters) == std::string_view::npos;
    };
    line = line.substr(0, line.find('#'));
    const auto equals = std::min(line.find('='), line.size());
    const auto key = word_of(line.substr(0, equals));
    const auto value = word_of(line.substr(std::min(equals + 1, line.size())));
    if (!is_bare(key) || !is_bare(value)) return {};
    const auto name = key.substr(key.rfind('.') + 1);
    if (name == "exempt" || name == "spill")
        return "; write it as " + std::string(key) + " = true, or = false";
    return fmt::format(R"(; write it as {} = "{}")", key, value);
}

/// The entries in the order of their lines. Errors: invalid_argument (it is no TOML).
Result<std::vector<Entry>> entries_of(std::string_view text, std::string_view name) {
    const auto bad = [&](std::size_t line, std::string_view what) {
        return make_error(ErrorCode::invalid_argument, "{}:{}: {}", name, line, what);
    };
    std::string plain(text);
    std::size_t line = 0;
    for (std::size_t begin = 0; begin < plain.size();) {
        const auto end = std::min(plain.find('\n', begin), plain.size());
        ++line;
        if (const auto problem = make_plain(plain, begin, end); !problem.empty()) return bad(line, problem);
        begin = end + 1;
    }
    std::vector<Entry> entries;
    try {
        add_entries(toml::parse(plain), {}, entries);
    } catch (const toml::parse_error& error) {
        const auto where = error.source().begin.line;
        return bad(where, std::string(error.description()) + quoted_form(line_of(plain, where)));
    } catch (const Unforeseen&) {
        return make_error(ErrorCode::invalid_argument, "{}: this is not TOML", name);
    }
    std::ranges::stable_sort(entries, {}, &Entry::line);
    return entries;
}

#else

Result<std::vector<Entry>> entries_of(std::string_view, std::string_view name) {
    return make_error(
        ErrorCode::refused,
        "{}: this build of gpu-sleep cannot read configuration files: toml++ was missing when it was built",
        name);
}

#endif

/// A key of a section of the kind `Section`.
template <class Section>
struct Key {
    std::string_view name;
    /// Reads the value into the section. Returns what is wrong with it, or nothing.
    std::string (*read)(const Value& value, Section& section, std::string_view form);
    std::string_view form{};           ///< how a text is to be written
    bool is_for_users_section = false; ///< and in no other
};

std::string kind_of(const Value& value) {
    if (std::holds_alternative<bool>(value)) return "a boolean";
    if (std::holds_alternative<std::string>(value)) return "a string";
    if (std::holds_alternative<std::vector<std::string>>(value)) return "a list";
    const auto* const other = std::get_if<OtherValue>(&value);
    return other ? other->kind : "an empty section";
}

/// Reads what `parse` makes of a text.
template <auto Place, auto parse, class Section>
std::string text(const Value& value, Section& section, std::string_view form) {
    const auto* const text = std::get_if<std::string>(&value);
    if (text == nullptr)
        return fmt::format("this is {}, and must be a string: write it as {}", kind_of(value), form);
    auto read = parse(*text);
    if (!read) return read.error().message;
    section.*Place = *std::move(read);
    return {};
}

template <auto Place, class Section>
std::string flag(const Value& value, Section& section, std::string_view) {
    const auto* const is_set = std::get_if<bool>(&value);
    if (is_set == nullptr) return fmt::format("this is {}, and must be true or false", kind_of(value));
    section.*Place = *is_set;
    return {};
}

std::string read_idle(const Value& value, Settings& settings, std::string_view) {
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

constexpr std::string_view k_size = "\"64GiB\"";

constexpr Key<Settings> k_process_keys[] = {
    {"idle", read_idle},
    {"min-awake", text<&Settings::min_awake, parse_duration>, "\"1m\""},
    {"exempt", flag<&Settings::exempt>},
    {"directory", text<&Settings::directory, parse_directory>, "\"/var/tmp/gpu-sleep-{user}\""},
    {"spill", flag<&Settings::spill>},
    {"host-budget", text<&Settings::host_budget, parse_bytes>, k_size, true},
};

constexpr Key<TagSettings> k_tag_keys[] = {
    {"store", text<&TagSettings::store, parse_store_word>, "\"file\""},
    {"exempt", flag<&TagSettings::exempt>},
};

constexpr Key<Configuration> k_host_keys[] = {
    {"budget", text<&Configuration::machine_budget, parse_bytes>, k_size},
    {"per-user", text<&Configuration::user_budget, parse_bytes>, k_size},
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
        if (key.name == name && (of_user || !key.is_for_users_section))
            return key.read(value, section, key.form);
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

/// Puts the entry into `file`. Returns what is wrong with it, or nothing: without file and line.
std::string put_entry(Configuration& file, const Entry& entry, Author author) {
    const auto& section = entry.path.front();
    const bool is_plain = section == "reclaim" || section == "host";
    const auto is_named = [](std::string_view word) {
        return word == "user" || word == "command" || word == "tag";
    };
    const auto depth = is_plain ? 2U : 3U;
    const auto is_key_of = [&](const auto& keys) {
        const auto names = names_of(keys, false);
        return std::ranges::find(names, section) != names.end();
    };
    const bool is_key = is_key_of(k_process_keys);
    if (entry.path.size() == 1 && (is_key || is_key_of(k_host_keys)))
        return fmt::format("it is in no section: write [{}] above it", is_key ? "reclaim" : "host");
    if (!is_plain && !is_named(section))
        return "there is no such section" +
               suggestion(section, {"reclaim", "host", "user", "command", "tag"});
    if (entry.path.size() < depth && std::holds_alternative<EmptySection>(entry.value)) return {};
    if (entry.path.size() < depth)
        return is_plain ? fmt::format("it should be a section, [{}], with keys", section)
                        : fmt::format("it should be sections such as [{}.NAME]", section);
    if (entry.path.size() > depth + 1 && is_named(entry.path[1]))
        return fmt::format("it is in the section [{}]: write [{}.NAME] above it", section, entry.path[1]);
    if (entry.path.size() > depth) return "there is no such key";
    if (depth == 3) return put_named(file, entry, author);
    if (section == "reclaim" && entry.path[1] == "notify") {
        if (author == Author::user) return "only the administrator's file names a program to run";
        return text<&Configuration::notify, parse_directory>(entry.value, file, "\"/etc/gpu-sleep-notify\"");
    }
    if (section == "reclaim") return put(file.reclaim, k_process_keys, entry.path[1], entry.value, false);
    if (author == Author::user && entry.path[1] == "budget")
        return "only the administrator's file has a budget for the machine; use per-user for your own";
    return put(file, k_host_keys, entry.path[1], entry.value, true);
}

/// Returns why a ladder of a user's file cannot lead to files; empty if it can. One of the administrator's
/// may rely on each user's directory: decide() looks there.
std::string ladder_problem(const Configuration& file, const Entry& entry) {
    const bool is_general = entry.path.front() == "reclaim";
    const std::size_t depth = is_general ? 2 : 3; // of a key; [command.idle] is a section
    if (entry.path.back() != "idle" || entry.path.size() != depth) return {};
    const auto& section = is_general ? file.reclaim : file.commands.at(entry.path[1]);
    if (!section.idle || !leads_to_files(*section.idle)) return {};
    if (section.directory || file.reclaim.directory) return {};
    return k_directory_missing;
}

} // namespace

Result<Configuration> parse_configuration(std::string_view text, std::string_view name, Author author,
                                          bool has_directory) {
    const auto entries = GPU_SLEEP_TRY(entries_of(text, name));
    Configuration file;
    file.name = name;
    const auto at = [&](const Entry& entry) {
        return fmt::format("{}:{}: {}", name, entry.line, fmt::join(entry.path, "."));
    };
    for (const auto& entry : entries)
        if (const auto problem = put_entry(file, entry, author); !problem.empty())
            return make_error(ErrorCode::invalid_argument, "{}: {}", at(entry), problem);
    if (author == Author::administrator || has_directory) return file;
    for (const auto& entry : entries)
        if (const auto problem = ladder_problem(file, entry); !problem.empty())
            return make_error(ErrorCode::invalid_argument, "{}: {}", at(entry), problem);
    return file;
}

} // namespace gpu_sleep::control::policy
