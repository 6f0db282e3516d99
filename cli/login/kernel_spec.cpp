// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Our members of a kernel's specification: two variables of "env", and "gpu-sleep" of "metadata".

#include "cli/login/kernel_spec.hpp"

#include "cli/preload.hpp"
#include "cli/show/json_value.hpp"
#include "model/environment.hpp"

namespace gpu_sleep::cli {
namespace {

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

/// The text of a member, or nothing.
std::optional<std::string> text_of(const OrderedJson& object, const char* member) {
    const auto found = object.is_object() ? object.find(member) : object.end();
    if (!object.is_object() || found == object.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
}

OrderedJson member_of(const OrderedJson& object, const char* member) {
    return object.is_object() && object.contains(member) ? object.at(member) : OrderedJson();
}

std::string with_ours(OrderedJson json, const std::string& original, const std::string& library) {
    auto& env = json[k_env];
    env[k_preload] = with_agent(library, text_of(env, k_preload).value_or(std::string()));
    if (!env.contains(model::environment::k_capture)) env[model::environment::k_capture] = "1";
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
    const bool was_set = member_of(before, k_env).contains(model::environment::k_capture);
    if (!was_set && text_of(member_of(json, k_env), model::environment::k_capture) == "1")
        remove(json, k_env, model::environment::k_capture, before);
    remove(json, k_metadata, k_ours, before);
    return json.dump(1) + "\n";
}

} // namespace

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
