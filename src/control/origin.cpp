// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading names that Jupyter, container runtimes and systemd make.

#include "control/origin.hpp"

#include "base/small_file.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <cstddef>

namespace gpu_sleep::control {
namespace {

constexpr std::size_t k_short_id = 12;

std::string_view file_name_in(std::string_view path) {
    return path.substr(path.rfind('/') + 1); // npos + 1 is 0
}

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
        const auto group = file_name_in(path);
        if (const auto id = container_in(group); !id.empty()) return std::string(id.substr(0, k_short_id));
        if (is_of_program(group)) return std::string(group);
        path = path.substr(0, path.size() - group.size());
        if (path.ends_with('/')) path.remove_suffix(1);
    }
    return {};
}

} // namespace

std::string kernel_in(std::string_view command) {
    constexpr std::string_view k_begin = "/kernel-";
    const auto begin = command.rfind(k_begin);
    if (begin == command.npos) return {};
    const auto id = command.substr(begin + k_begin.size());
    const auto end = id.find(".json");
    return end == id.npos || id.substr(0, end).find_first_of("/ ") != id.npos
               ? std::string()
               : std::string(id.substr(0, end));
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
    if (!origin.notebook.empty()) return printable(file_name_in(origin.notebook));
    if (!origin.kernel.empty()) return "kernel " + printable(origin.kernel.substr(0, k_short_kernel));
    return printable(origin.job.empty() ? origin.unit : "job " + origin.job);
}

} // namespace gpu_sleep::control
