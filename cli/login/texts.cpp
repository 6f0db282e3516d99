// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing and reading scripts, and our members of a kernel: two variables of "env", "gpu-sleep" of
// "metadata".

#include "cli/login/texts.hpp"

#include "base/files.hpp"
#include "cli/preload.hpp"
#include "cli/show/json.hpp"
#include "model/environment.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace gpu_sleep::cli {
namespace {

constexpr std::string_view k_begin = "# gpu-sleep: the agent in the login environment.";
constexpr std::string_view k_head =
    "# gpu-sleep: the agent in the login environment. gpu-enable wrote this file, and\n"
    "# gpu-enable --off removes it.\n";
constexpr std::string_view k_made = "# made: ";
constexpr std::string_view k_changed = "# changed: ";
constexpr std::string_view k_line_end = " # gpu-sleep: gpu-enable user wrote this line";

constexpr const char* k_env = "env";
constexpr const char* k_metadata = "metadata";
constexpr const char* k_ours = "gpu-sleep";
constexpr const char* k_original = "original";
constexpr const char* k_library = "library";
constexpr const char* k_preload = "LD_PRELOAD";

/// Nothing if the text is no JSON object.
std::optional<OrderedJson> parse(const std::string& text) {
    auto json = OrderedJson::parse(text, nullptr, false);
    return json.is_object() ? std::optional(std::move(json)) : std::nullopt;
}

OrderedJson member_of(const OrderedJson& object, const char* member) {
    return object.is_object() && object.contains(member) ? object.at(member) : OrderedJson();
}

/// The text of a member, or nothing.
std::optional<std::string> text_of(const OrderedJson& object, const char* member) {
    const auto found = member_of(object, member);
    return found.is_string() ? std::optional(found.get<std::string>()) : std::nullopt;
}

std::string with_ours(OrderedJson json, const std::string& original, const std::string& library) {
    auto& env = json[k_env];
    env[k_preload] = with_agent(library, text_of(env, k_preload).value_or(std::string()));
    json[k_metadata][k_ours] = {{k_library, library}, {k_original, original}};
    return json.dump(1) + "\n";
}

/// Removes a member, and the object if nothing else is in it and it was not there before.
void remove(OrderedJson& json, const char* object, const char* member, const OrderedJson& before) {
    if (!json.contains(object) || !json[object].is_object()) return;
    json[object].erase(member);
    if (json[object].empty() && !before.contains(object)) json.erase(object);
}

/// An edited specification without our members.
std::string without_ours(OrderedJson json, const OrderedJson& before) {
    const auto preloaded = text_of(member_of(json, k_env), k_preload);
    const auto others = preloaded ? without_agent(*preloaded) : std::string();
    if (preloaded && !others.empty()) json[k_env][k_preload] = others;
    if (preloaded && others.empty()) remove(json, k_env, k_preload, before);
    remove(json, k_metadata, k_ours, before);
    return json.dump(1) + "\n";
}

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
                              "    export LD_PRELOAD\n"
                              "fi\n",
                              library, model::environment::k_disable);
}

std::string login_csh_script(const std::string& library) {
    return std::string(k_head) + fmt::format("if ( -r '{0}' && ! $?{1} ) then\n"
                                             "    if ( ! $?LD_PRELOAD ) then\n"
                                             "        setenv LD_PRELOAD '{0}'\n"
                                             "    else if ( \":${{LD_PRELOAD}}:\" !~ '*:{0}:*' ) then\n"
                                             "        setenv LD_PRELOAD '{0}':\"${{LD_PRELOAD}}\"\n"
                                             "    endif\n"
                                             "endif\n",
                                             library, model::environment::k_disable);
}

std::string login_generator(const std::string& library) {
    return "#!/bin/sh\n" + std::string(k_head) +
           fmt::format("[ -r '{0}' ] || exit 0\n"
                       "case \":${{LD_PRELOAD-}}:\" in\n"
                       "*':{0}:'*) ;;\n"
                       "*) printf '%s\\n' \"LD_PRELOAD={0}${{LD_PRELOAD:+:$LD_PRELOAD}}\" ;;\n"
                       "esac\n",
                       library);
}

std::string login_variables(const std::string& library) {
    return std::string(k_head) + fmt::format("LD_PRELOAD={}${{LD_PRELOAD:+:$LD_PRELOAD}}\n", library);
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

std::optional<std::string> enabled_kernel(const std::string& text, const std::string& library) {
    const auto original = disabled_kernel(text).value_or(text);
    const auto json = parse(original);
    if (!json || text_of(*json, "language") != "python") return std::nullopt;
    for (const auto* object : {k_env, k_metadata})
        if (json->contains(object) && !json->at(object).is_object()) return std::nullopt;
    return with_ours(*json, original, library);
}

std::optional<std::string> disabled_kernel(const std::string& text) {
    const auto json = parse(text);
    const auto ours = json ? member_of(member_of(*json, k_metadata), k_ours) : OrderedJson();
    const auto original = text_of(ours, k_original);
    const auto library = text_of(ours, k_library);
    const auto before = original ? parse(*original) : std::nullopt;
    if (!before || !library) return std::nullopt;
    const bool is_unedited = text == with_ours(*before, *original, *library);
    return is_unedited ? *original : without_ours(*json, *before);
}

} // namespace gpu_sleep::cli
