// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From JSON to capture rules, with messages that say where.

#include "cli/rules_file.hpp"

#include "base/fd.hpp"
#include "base/files.hpp"

#include <nlohmann/json.hpp>

#include <set>

namespace gpu_sleep::cli {
namespace {

using Json = nlohmann::json;
using model::AllocationRule;

constexpr std::size_t k_max_file_bytes = 1 << 20;
constexpr std::string_view k_members = "min_size, max_size, library, tag and capture";

/// Parses `text`. A member that is there twice, which JSON leaves open, is named in `repeated`.
Json parse_json(std::string_view text, std::optional<std::string>& repeated) {
    std::vector<std::set<std::string>> open_objects;
    const auto watch = [&](int, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
        if (event == Json::parse_event_t::object_end) open_objects.pop_back();
        if (event == Json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second)
            repeated = value.get<std::string>();
        return true;
    };
    return Json::parse(text, watch);
}

/// What is wrong with `value` as `member` of a rule, or nothing; sets it in `rule`.
std::string set_member(AllocationRule& rule, const std::string& member, const Json& value) {
    if (member == "min_size" || member == "max_size") {
        auto& size = member == "min_size" ? rule.min_size : rule.max_size;
        if (value.is_number_unsigned()) {
            size = value.get<Bytes>();
            return {};
        }
        if (!value.is_string()) return fmt::format("{} is not a size; write it as \"64MiB\"", value.dump());
        const auto bytes = parse_bytes(value.get_ref<const std::string&>());
        if (!bytes) return bytes.error().message;
        size = *bytes;
        return {};
    }
    if (member == "library" || member == "tag") {
        if (!value.is_string() || value.get_ref<const std::string&>().empty())
            return fmt::format("{} is not a name; write it as \"weights\"", value.dump());
        (member == "tag" ? rule.tag : rule.library) = value.get<std::string>();
        return {};
    }
    if (member != "capture") return fmt::format("there is no such member; the members are {}", k_members);
    if (!value.is_boolean()) return fmt::format("{} is neither true nor false", value.dump());
    rule.intercept = value.get<bool>();
    return {};
}

Result<AllocationRule> rule_from(const Json& value, std::size_t number, std::string_view name) {
    if (!value.is_object())
        return make_error(ErrorCode::invalid_argument, "{}: rule {} is not an object", name, number);
    AllocationRule rule;
    for (const auto& [member, content] : value.items())
        if (const auto trouble = set_member(rule, member, content); !trouble.empty())
            return make_error(ErrorCode::invalid_argument, "{}: rule {}, {}: {}", name, number, member,
                              trouble);
    return rule;
}

/// nlohmann's own words begin with a bracketed number, which says nothing to whoever wrote the file.
std::string words_of(const Json::exception& error) {
    const std::string_view text(error.what());
    const auto end = text.find("] ");
    return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

Result<model::AllocationRules> rules_from(const Json& document, std::string_view name) {
    const auto bad = [&](std::string_view what) {
        return make_error(ErrorCode::invalid_argument, "{}: {}", name, what);
    };
    if (!document.is_object() || !document.contains("rules") || !document["rules"].is_array())
        return bad("it should be an object with a list: {\"rules\": [...]}");
    if (document.size() != 1) return bad("there should be nothing besides \"rules\"");
    std::vector<AllocationRule> rules;
    for (const auto& value : document["rules"]) {
        auto rule = rule_from(value, rules.size() + 1, name);
        if (!rule) return std::move(rule).error();
        rules.push_back(*std::move(rule));
    }
    auto made = model::AllocationRules::create(std::move(rules));
    if (!made) return bad(made.error().message);
    return made;
}

} // namespace

Result<model::AllocationRules> parse_rules(std::string_view text, std::string_view name) {
    // nlohmann-json throws what it cannot read, and on texts that are not UTF-8 when it shows them.
    try {
        std::optional<std::string> repeated;
        const auto document = parse_json(text, repeated);
        if (repeated)
            return make_error(ErrorCode::invalid_argument, "{}: \"{}\" appears twice in one object", name,
                              *repeated);
        return rules_from(document, name);
    } catch (const Json::exception& error) {
        return make_error(ErrorCode::invalid_argument, "{}: {}", name, words_of(error));
    }
}

Result<model::AllocationRules> read_rules_file(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return errno_error(ErrorCode::io_failed, errno, "open", path);
    const auto text = read_open_file(file.get(), k_max_file_bytes);
    if (!text && errno == EFBIG)
        return make_error(ErrorCode::invalid_argument, "{}: it is longer than {}", path,
                          format_bytes(k_max_file_bytes));
    if (!text) return errno_error(ErrorCode::io_failed, errno, "read", path);
    return parse_rules(*text, path);
}

} // namespace gpu_sleep::cli
