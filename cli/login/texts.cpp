// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing and reading the texts.

#include "cli/login/texts.hpp"

#include "base/small_file.hpp"
#include "model/environment.hpp"

#include <fmt/format.h>

namespace gpu_sleep::cli {
namespace {

constexpr std::string_view k_begin = "# gpu-sleep: the agent in the login environment.";
constexpr std::string_view k_head =
    "# gpu-sleep: the agent in the login environment. gpu-enable wrote this file, and\n"
    "# gpu-enable --off removes it.\n";
constexpr std::string_view k_made = "# made: ";
constexpr std::string_view k_changed = "# changed: ";
constexpr std::string_view k_line_end = " # gpu-sleep: gpu-enable user wrote this line";

} // namespace

std::string login_script(const std::string& library, const LoginRecords& records) {
    auto text = std::string(k_head);
    for (const auto& path : records.made) text.append(k_made).append(path.native()).append("\n");
    for (const auto& path : records.changed) text.append(k_changed).append(path.native()).append("\n");
    return text + fmt::format("if [ -r '{0}' ] && [ \"${{{1}:-0}}\" = 0 ]; then\n"
                              "    case \":${{LD_PRELOAD-}}:\" in\n"
                              "    *':{0}:'*) ;;\n"
                              "    *) LD_PRELOAD='{0}'${{LD_PRELOAD:+:$LD_PRELOAD}} ;;\n"
                              "    esac\n"
                              "    {2}=${{{2}-1}}\n"
                              "    export LD_PRELOAD {2}\n"
                              "fi\n",
                              library, model::environment::k_disable, model::environment::k_capture);
}

std::string login_csh_script(const std::string& library) {
    return std::string(k_head) + fmt::format("if ( -r '{0}' && ! $?{1} ) then\n"
                                             "    if ( ! $?LD_PRELOAD ) then\n"
                                             "        setenv LD_PRELOAD '{0}'\n"
                                             "    else if ( \":${{LD_PRELOAD}}:\" !~ '*:{0}:*' ) then\n"
                                             "        setenv LD_PRELOAD '{0}':\"${{LD_PRELOAD}}\"\n"
                                             "    endif\n"
                                             "    if ( ! $?{2} ) setenv {2} 1\n"
                                             "endif\n",
                                             library, model::environment::k_disable,
                                             model::environment::k_capture);
}

std::string login_generator(const std::string& library) {
    return "#!/bin/sh\n" + std::string(k_head) +
           fmt::format("[ -r '{0}' ] || exit 0\n"
                       "case \":${{LD_PRELOAD-}}:\" in\n"
                       "*':{0}:'*) ;;\n"
                       "*) printf '%s\\n' \"LD_PRELOAD={0}${{LD_PRELOAD:+:$LD_PRELOAD}}\" ;;\n"
                       "esac\n"
                       "printf '%s\\n' \"{1}=${{{1}-1}}\"\n",
                       library, model::environment::k_capture);
}

std::string login_variables(const std::string& library) {
    return std::string(k_head) + fmt::format("LD_PRELOAD={0}${{LD_PRELOAD:+:$LD_PRELOAD}}\n{1}=${{{1}:-1}}\n",
                                             library, model::environment::k_capture);
}

LoginRecords read_records(std::string_view script) {
    LoginRecords records;
    while (const auto line = take_line(script)) {
        if (line->starts_with(k_made)) records.made.emplace_back(line->substr(k_made.size()));
        if (line->starts_with(k_changed)) records.changed.emplace_back(line->substr(k_changed.size()));
    }
    return records;
}

bool is_login_file(std::string_view contents) {
    while (const auto line = take_line(contents))
        if (!line->starts_with("#!")) return line->starts_with(k_begin);
    return false;
}

std::string with_login_line(std::string_view profile, const std::filesystem::path& script) {
    return fmt::format("[ -r '{0}' ] && . '{0}'{1}\n", script.native(), k_line_end) +
           without_login_line(profile);
}

std::string without_login_line(std::string_view profile) {
    std::string kept;
    while (!profile.empty()) {
        const auto rest = profile;
        const auto line = take_line(profile);
        if (!line->ends_with(k_line_end)) kept += rest.substr(0, rest.size() - profile.size());
    }
    return kept;
}

} // namespace gpu_sleep::cli
