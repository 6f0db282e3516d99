// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From the table to CLI11's parser, to help and to what scripts and the completion read.

#include "cli/usage.hpp"

#include "cli/show/output.hpp"
#include "protocol/messages.hpp"
#include "store/snapshot_description.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>
#include <sstream>

namespace gpu_sleep::cli::usage {
namespace {

constexpr std::size_t k_columns = 80;

/// "-q, --quiet", "--dir DIR" or "--watch[=INTERVAL]".
std::string spelling(const Row& row) {
    auto text = row.names;
    if (const auto comma = text.find(','); comma != std::string::npos) text.insert(comma + 1, " ");
    if (row.value.name.empty()) return text;
    return row.value.plain ? fmt::format("{}[={}]", text, row.value.name)
                           : fmt::format("{} {}", text, row.value.name);
}

/// Continues the last line of `page` at column `indent` by the words of `text`, in as many lines as they
/// need.
void add_words(std::string& page, const std::string& text, std::size_t indent) {
    std::istringstream words(text);
    const auto column = [&page] { return page.size() - (page.rfind('\n') + 1); };
    const auto begin_line = [&] {
        if (column() != 0) page += '\n';
        page.append(indent, ' ');
    };
    if (column() + 2 > indent) begin_line();
    page.append(indent - std::min(indent, column()), ' ');
    for (std::string word; words >> word;) {
        if (column() + 1 + word.size() > k_columns) begin_line();
        if (column() > indent) page += ' ';
        page += word;
    }
    page += '\n';
}

void add_usages(std::string& page, const Table& table) {
    constexpr std::size_t k_indent = 7;
    for (const auto& usage : table.usages) {
        page += &usage == table.usages.data() ? "Usage: " : std::string(k_indent, ' ');
        page += table.name + ' ' + usage + '\n';
    }
}

void add_rows(std::string& page, const std::vector<Row>& rows) {
    constexpr std::size_t k_most_of_names = 26;
    std::size_t widest = 0;
    for (const auto& row : rows) widest = std::max(widest, std::min(k_most_of_names, spelling(row).size()));
    for (const auto& row : rows) {
        page += "  " + spelling(row);
        add_words(page, row.help, widest + 4);
    }
}

/// --help: what people use most. --help-all: everything.
std::string help(const Table& table, bool is_full) {
    std::string page;
    add_words(page, table.purpose, 0);
    page += '\n';
    add_usages(page, table);
    std::vector<Row> used_most;
    for (const auto& group : table.groups) {
        for (const auto& row : group.rows)
            if (row.is_brief) used_most.push_back(row);
        if (!is_full) continue;
        page += fmt::format("\n{}:\n", group.heading);
        add_rows(page, group.rows);
    }
    if (!is_full) {
        page += '\n';
        add_rows(page, used_most);
    }
    if (!is_full && !table.examples.empty()) page += "\nExamples:\n" + table.examples;
    page += '\n';
    const auto manual = table.name.substr(0, table.name.find(' '));
    const auto more = table.subcommands.empty()
                          ? fmt::format("All options: {} --help-all", table.name)
                          : fmt::format("Options of each: {} --help", table.subcommands.front().name);
    if (!is_full)
        page += fmt::format("{}. The manual: man {}\n", more, manual);
    else if (!table.exit_statuses.empty())
        add_words(page, "Exit status: " + table.exit_statuses, 0);
    return page;
}

/// For scripts and the completion: headings, below each its rows as they are spelled, below each its help.
std::string describe(const Table& table) {
    std::string text;
    add_usages(text, table);
    for (const auto& group : table.groups) {
        text += group.heading + ":\n";
        for (const auto& row : group.rows) text += fmt::format("{}\n    {}\n", spelling(row), row.help);
    }
    return text;
}

CLI::Option* add_row(CLI::App& app, const Row& row) {
    const auto& value = row.value;
    if (value.flag) return app.add_flag(row.names, *value.flag)->disable_flag_override();
    if (value.plain)
        return app.add_flag(fmt::format("{}{{{}}}", row.names, value.fallback), *value.plain)
            ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
    if (!value.read) return nullptr;
    const auto name = row.names.substr(row.names.find(',') + 1);
    const auto take = [value, name](const std::string& word) {
        const auto problem = value.read(word);
        if (!problem.empty()) throw CLI::ValidationError(fmt::format("{}: {}", name, problem));
    };
    if (!value.may_repeat) return app.add_option_function<std::string>(row.names, take);
    const auto take_all = [take](const std::vector<std::string>& words) {
        std::ranges::for_each(words, take);
    };
    const bool is_option = row.names.front() == '-'; // whose next words are not its own
    return app.add_option_function<std::vector<std::string>>(row.names, take_all)
        ->delimiter(value.separator)
        ->allow_extra_args(!is_option);
}

} // namespace

void add(CLI::App& app, Table table) {
    app.name(table.name.substr(table.name.rfind(' ') + 1));
    for (const auto& group : table.groups)
        for (const auto& row : group.rows)
            if (auto* const option = add_row(app, row))
                option->group(group.heading)->required(row.is_required);
    for (const auto& [option, other] : table.needs) app.get_option(option)->needs(app.get_option(other));
    for (const auto& [option, other] : table.excludes)
        app.get_option(option)->excludes(app.get_option(other));
    app.set_help_flag("-h,--help")->disable_flag_override();
    app.set_help_all_flag("--help-all")->disable_flag_override();
    Group information{"Help",
                      {{"-h,--help", {}, "Print the most used options, and examples"},
                       {"--help-all", {}, "Print all options"}}};
    if (!app.get_parent()) {
        app.set_version_flag("--version",
                             fmt::format("{} {} (protocol {}, snapshot format {})", table.name,
                                         GPU_SLEEP_VERSION, protocol::k_version, store::k_snapshot_version))
            ->disable_flag_override();
        information.rows.push_back({"--version", {}, "Print the version"});
    }
    table.groups.push_back(std::move(information));
    if (!table.subcommands.empty()) app.require_subcommand(1);
    Group subcommands{"Subcommands", {}};
    for (const auto& each : table.subcommands) {
        auto* const command = app.add_subcommand(each.name.substr(each.name.rfind(' ') + 1));
        subcommands.rows.push_back({command->get_name(), {}, each.purpose, true});
        add(*command, each);
    }
    if (!subcommands.rows.empty()) table.groups.insert(table.groups.begin(), std::move(subcommands));
    const auto shared = std::make_shared<const Table>(std::move(table));
    const auto tell = [shared] { throw CLI::CallForVersion(describe(*shared), 0); };
    app.add_flag_callback("--describe", tell)->disable_flag_override();
    app.formatter_fn([shared](const CLI::App*, const std::string&, CLI::AppFormatMode mode) {
        return help(*shared, mode == CLI::AppFormatMode::All);
    });
}

Row brief(Row row) {
    row.is_brief = true;
    return row;
}

Row required(Row row) {
    row.is_required = true;
    return row;
}

Value flag(bool& value) {
    return {.name = {}, .flag = &value};
}

Value text(const std::string& name, const ReadText& read) {
    return {.name = name, .read = read};
}

Value path(const std::string& name, std::string& path) {
    return text(name, [&path](const std::string& word) { return path = word, std::string(); });
}

Value list(const std::string& name, std::vector<std::string>& texts, char separator) {
    const auto read = [&texts](const std::string& word) { return texts.push_back(word), std::string(); };
    return {.name = name, .read = read, .may_repeat = true, .separator = separator};
}

Value choice(const std::string& words, const std::function<void(const std::string&)>& assign) {
    return text(words, [words, assign](const std::string& word) {
        const bool is_one = word.find('|') == word.npos &&
                            fmt::format("|{}|", words).find(fmt::format("|{}|", word)) != word.npos;
        if (!is_one) return fmt::format("'{}' is not one of {}", word, words);
        assign(word);
        return std::string();
    });
}

Value with_default(const std::string& name, const std::string& fallback, std::string& text) {
    return {.name = name, .plain = &text, .fallback = fallback};
}

Row word_row(const std::string& name, std::string& word, const std::string& wanted, const std::string& help) {
    const auto read = [&word, wanted](const std::string& text) {
        word = text;
        return text.empty() ? "it is empty; it should be " + wanted : std::string();
    };
    return brief({name, {.name = {}, .read = read}, help});
}

} // namespace gpu_sleep::cli::usage
