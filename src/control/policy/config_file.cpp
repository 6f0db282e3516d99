// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a file to entries, each with its line.

#include "control/policy/config_file.hpp"

#include "base/files.hpp"
#include "control/policy/config_reader.hpp"

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
#include <fmt/format.h>
#include <toml++/toml.h>
static_assert(TOML_LIB_MAJOR >= 3);
#endif

#include <pwd.h>

#include <cstdlib>
#include <system_error>

namespace gpu_sleep::control::policy {
namespace {

constexpr std::size_t k_max_file_bytes = 1 << 20;

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

} // namespace

Result<UniqueFd> open_trusted(const std::filesystem::path& path, uid_t owner) {
    const UniqueFd place(
        open_file(AT_FDCWD, path.c_str(), O_PATH | O_CLOEXEC)); // to open a device may do something
    GPU_SLEEP_TRY(check_trusted(place, S_IFREG, path, owner));
    UniqueFd file(
        open_file(AT_FDCWD, fmt::format("/proc/self/fd/{}", place.get()).c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return errno_error(ErrorCode::io_failed, errno, "open", path.string());
    return file;
}

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

std::filesystem::path user_file(uid_t user) {
    constexpr const char* k_name = "gpu-sleep.toml";
    const bool is_own = user == ::geteuid();
    if (const auto own = is_own ? absolute_variable("XDG_CONFIG_HOME") : std::string(); !own.empty())
        return std::filesystem::path(own) / k_name;
    auto home = is_own ? absolute_variable("HOME") : std::string();
    if (home.empty()) home = home_of(user);
    return home.empty() ? std::filesystem::path() : std::filesystem::path(home) / ".config" / k_name;
}

} // namespace gpu_sleep::control::policy
