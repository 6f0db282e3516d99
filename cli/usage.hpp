// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of a command's options: the source of its parser, its help, the SYNOPSIS and OPTIONS of its
// manual page (scripts/manual) and its completion.

#pragma once

#include "base/units.hpp"

#include <functional>
#include <vector>

namespace CLI {
class App; // whose header takes seconds to compile
}

namespace gpu_sleep::cli::usage {

/// Reads the text of a value; returns what is wrong with it, or nothing.
using ReadText = std::function<std::string(const std::string& text)>;

/// What an option takes.
struct Value {
    /// For people, and for the completion, which knows by it what to offer: DIR is a directory, "a|b" are the
    /// words themselves. Empty for a flag.
    std::string name;
    ReadText read = {};           ///< without it, and without the next two, the row is for people alone
    bool* flag = nullptr;         ///< becomes true
    std::string* plain = nullptr; ///< takes what follows an equals sign, or `fallback`
    std::string fallback = {};
    bool may_repeat = false;
    char separator = '\0'; ///< of several values in one word
};

/// A row of the table.
struct Row {
    std::string names; ///< "-q,--quiet"; without dashes: a word that is no option
    Value value;
    std::string help;      ///< a sentence or two, without the last full stop
    bool is_brief = false; ///< in --help, too, and not in --help-all and the manual page alone
    bool is_required = false;
};

/// Rows under a heading.
struct Group {
    std::string heading;
    std::vector<Row> rows;
};

/// All that is said of a command, or of a subcommand.
struct Table {
    std::string name;
    std::string purpose;             ///< sentences
    std::vector<std::string> usages; ///< what follows the name
    std::vector<Group> groups;
    std::string examples = {};                                   ///< lines
    std::string exit_statuses = {};                              ///< sentences
    std::vector<Table> subcommands = {};                         ///< one of which is required
    std::vector<std::pair<std::string, std::string>> needs = {}; ///< options, each with one that it needs
    std::vector<std::pair<std::string, std::string>> excludes = {};
};

/// Gives `app` all that the table says, and --help, --help-all, --version and the hidden --describe besides.
void add(CLI::App& app, Table table);

/// `row`, in --help too.
[[nodiscard]] Row brief(Row row);
/// `row`, without which the command line is wrong.
[[nodiscard]] Row required(Row row);

[[nodiscard]] Value flag(bool& value);
/// One text of the kind `name`.
[[nodiscard]] Value text(const std::string& name, const ReadText& read);
/// The name of a file or directory.
[[nodiscard]] Value path(const std::string& name, std::string& path);
/// One text of the kind `name`, as `parse`, which gives a Result, reads it.
template <class Parse, class T>
[[nodiscard]] Value parsed(const std::string& name, Parse parse, T& value) {
    return text(name, [parse, &value](const std::string& word) {
        const auto read = parse(word);
        if (!read) return read.error().message;
        value = *read;
        return std::string();
    });
}
/// A duration with its unit, and a size.
[[nodiscard]] Value duration(auto& value) {
    return parsed("DURATION", parse_duration, value);
}
[[nodiscard]] Value size(auto& value) {
    return parsed("SIZE", parse_bytes, value);
}
/// Texts in one word each, or separated by `separator`; the option may be given again.
[[nodiscard]] Value list(const std::string& name, std::vector<std::string>& texts, char separator = ',');
/// One of `words`, written "shut|checked". `assign` gets it.
[[nodiscard]] Value choice(const std::string& words, const std::function<void(const std::string&)>& assign);
/// A flag that may be followed by an equals sign and a text; without it the text is `fallback`.
[[nodiscard]] Value with_default(const std::string& name, const std::string& fallback, std::string& text);

/// A word that is no option, and not empty: `wanted` says what it should be.
[[nodiscard]] Row word_row(const std::string& name, std::string& word, const std::string& wanted,
                           const std::string& help);

} // namespace gpu_sleep::cli::usage

namespace gpu_sleep {
namespace usage = cli::usage; // as commands call it
} // namespace gpu_sleep
