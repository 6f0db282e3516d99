// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names from command lines, control groups and environments.

#include "control/program_name.hpp"

#include "base/files.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <iterator>

namespace gpu_sleep::control {
namespace {

/// How an interpreter's short options are read. Sources: python(1), perlrun(1), ruby(1), bash(1), dash(1),
/// zsh(1), node(1), julia(1).
struct Interpreter {
    std::string_view name;          ///< without a version
    std::string_view code;          ///< the options whose value is the program
    std::string_view module;        ///< the option whose value is a module
    std::string_view valued;        ///< other options with a value, in the same word or the next
    std::string_view attached = {}; ///< those whose value, if any, is the rest of the word
};

constexpr Interpreter k_interpreters[] = {
    {"python", "c", "m", "QWX"}, {"pypy", "c", "m", "QWX"},     {"perl", "eE", "", "FIMm", "i"},
    {"ruby", "e", "", "CEIr"},   {"bash", "c", "", "oO"},       {"sh", "c", "", "o"},
    {"dash", "c", "", "o"},      {"zsh", "c", "", "o"},         {"ksh", "c", "", "o"},
    {"node", "ep", "", "r"},     {"julia", "eE", "", "CHJLpt"},
};

/// "python" of "python3.12".
const Interpreter* known_interpreter(std::string_view program) {
    if (program.starts_with('-')) program.remove_prefix(1); // of a login shell
    const auto name = program.substr(0, program.find_first_of("0123456789"));
    const auto* const found = std::ranges::find(k_interpreters, name, &Interpreter::name);
    return found == std::end(k_interpreters) ? nullptr : found;
}

/// The last part of a path.
std::string file_name(std::string_view path) {
    while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
    return std::string(path.size() > 1 ? path.substr(path.rfind('/') + 1) : path); // npos + 1 is 0
}

/// Returns the program's name from a process's first argument. With further arguments it is a path: a process
/// that sets a title leaves none. Without, "sshd: user@pts/0" and "/opt/bin/python serve.py /data" are
/// titles, and "/opt/my programs/serve" is a path. Not told apart: a path with two blanks before the next
/// slash is taken for a title, and a title with a relative path behind the program's for a path.
std::string program_of(std::string_view word, bool has_arguments) {
    if (has_arguments) return file_name(word);
    const auto first = word.substr(0, word.find(' '));
    const auto rest = word.substr(first.size());
    const auto slash = rest.find('/');
    const bool is_path = first.find('/') != first.npos && slash != rest.npos && slash > 1;
    return is_path && slash < rest.find(' ', 1) ? file_name(word) : file_name(first) + std::string(rest);
}

/// Whether a long option's value is the next word.
bool takes_next_word(std::string_view option) {
    constexpr std::string_view k_options[] = {
        "--check-hash-based-pycs", "--import", "--loader", "--procs", "--require", "--sysimage", "--threads"};
    return std::ranges::find(k_options, option) != std::end(k_options);
}

/// Sets what `interpreter` runs, given the arguments behind its name.
void read_script(const Interpreter& interpreter, const std::vector<std::string>& arguments,
                 ProgramName& name) {
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        std::string_view word = arguments[i];
        const bool is_end = word == "--";
        if (word.size() > 1 && word.front() == '+' && !interpreter.code.empty()) continue; // a shell's +x
        if (is_end || !word.starts_with('-')) {
            if (i + is_end < arguments.size()) name.script = file_name(arguments[i + is_end]);
            return;
        }
        if (word == "-") return; // from standard input
        if (word.starts_with("--")) {
            i += takes_next_word(word);
            continue;
        }
        for (word.remove_prefix(1); !word.empty();) {
            const char letter = word.front();
            word.remove_prefix(1);
            if (interpreter.code.find(letter) != word.npos) return;
            if (interpreter.attached.find(letter) != word.npos) break;
            const bool is_module = interpreter.module.find(letter) != word.npos;
            if (!is_module && interpreter.valued.find(letter) == word.npos) continue;
            if (word.empty() && ++i < arguments.size()) word = arguments[i];
            if (is_module) {
                name.script = word;
                name.is_module = true;
                return;
            }
            break;
        }
    }
}

constexpr std::size_t k_short_id = 12;

/// The id of a container in "docker-ID.scope" or "ID": 64 hexadecimal digits.
std::string_view container_in(std::string_view group) {
    constexpr std::size_t k_digits = 64;
    constexpr std::string_view k_hex = "0123456789abcdef";
    for (auto at = group.find_first_of(k_hex); at != group.npos; at = group.find_first_of(k_hex, at)) {
        const auto end = std::min(group.find_first_not_of(k_hex, at), group.size());
        if (end - at == k_digits) return group.substr(at, k_digits);
        at = end;
    }
    return {};
}

/// Whether it is a unit of a program's, and not of the whole machine or of a login.
bool is_of_program(std::string_view group) {
    const bool is_unit = group.ends_with(".service") || group.ends_with(".scope");
    return is_unit && group != "init.scope" && !group.starts_with("user@") && !group.starts_with("session-");
}

std::string unit_of(std::string_view path) {
    while (!path.empty()) {
        auto group = file_name(path);
        if (auto id = short_container_in(group); !id.empty()) return id;
        if (is_of_program(group)) return group;
        path = path.substr(0, path.size() - group.size());
        if (path.ends_with('/')) path.remove_suffix(1);
    }
    return {};
}

} // namespace

ProgramName program_name(const std::vector<std::string>& arguments) {
    ProgramName name;
    if (arguments.empty()) return name;
    name.program = program_of(arguments.front(), arguments.size() > 1);
    if (const auto* const interpreter = known_interpreter(name.program))
        read_script(*interpreter, arguments, name);
    return name;
}

std::string to_string(const ProgramName& name) {
    if (name.script.empty()) return name.program;
    return name.program + (name.is_module ? " -m " : " ") + name.script;
}

bool is_called(const ProgramName& name, std::string_view text) {
    return !text.empty() && (text == name.program || text == name.script || text == to_string(name));
}

std::string short_container_in(std::string_view groups) {
    return std::string(container_in(groups).substr(0, k_short_id));
}

std::string pod_in(std::string_view groups) {
    constexpr std::size_t k_length = sizeof "01234567-89ab-cdef-0123-456789abcdef" - 1;
    for (auto at = groups.find("pod"); at != groups.npos; at = groups.find("pod", at + 1)) {
        std::string uid(groups.substr(at + 3, k_length));
        std::replace(uid.begin(), uid.end(), '_', '-'); // as systemd's names need it
        if (uid.size() == k_length && uid.find_first_not_of("0123456789abcdef-") == uid.npos) return uid;
    }
    return {};
}

std::string unit_in(std::string_view groups) {
    while (const auto line = take_line(groups)) {
        const auto begin = line->find(':');
        const auto end = line->find(':', begin + 1);
        if (begin == line->npos || end == line->npos) continue;
        const auto kind = line->substr(begin + 1, end - begin - 1); // empty; of the old kind one is systemd's
        if (!kind.empty() && kind != "name=systemd") continue;
        if (auto unit = unit_of(line->substr(end + 1)); !unit.empty()) return unit;
    }
    return {};
}

std::string to_text(const Origin& origin) {
    std::string text;
    const auto add = [&text](std::string_view words, const std::string& value) {
        if (!value.empty()) text.append(text.empty() ? "" : ", ").append(words).append(value);
    };
    add("notebook ", origin.notebook);
    add("kernel ", origin.kernel);
    add("job ", origin.job);
    add("in ", origin.unit);
    return printable(text);
}

std::string to_word(const Origin& origin) {
    constexpr std::size_t k_short_kernel = 8;
    if (!origin.notebook.empty()) return printable(file_name(origin.notebook));
    if (!origin.kernel.empty()) return "kernel " + printable(origin.kernel.substr(0, k_short_kernel));
    return printable(origin.job.empty() ? origin.unit : "job " + origin.job);
}

} // namespace gpu_sleep::control
