// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading, writing and matching capture rules.

#include "model/allocation_rules.hpp"

#include "base/text.hpp"
#include "model/terms.hpp"

#include <algorithm>
#include <optional>

namespace gpu_sleep::model {
namespace {

constexpr Bytes k_no_limit = std::numeric_limits<Bytes>::max();
constexpr std::string_view k_any = "any";

/// Takes what precedes `separator`, or all, off the front of `text`, and the separator. A separator at the
/// end leaves an empty piece behind, which no grammar here accepts.
std::string_view take_piece(std::optional<std::string_view>& text, char separator) {
    const auto end = text->find(separator);
    const auto piece = text->substr(0, end);
    if (end == std::string_view::npos)
        text.reset();
    else
        text->remove_prefix(end + 1);
    return piece;
}

/// As text_of() writes it: without zeros that say nothing.
bool parse_bytes_into(Bytes& field, std::string_view value) {
    const bool has_zeros = value.size() > 1 && value.front() == '0';
    const auto bytes = has_zeros ? std::nullopt : parse_number<Bytes>(value);
    field = bytes.value_or(0);
    return bytes.has_value();
}

/// Sets the field that `piece` names. False when it names none, or its value cannot be read.
bool set_field(AllocationRule& rule, std::string_view piece) {
    const auto value = piece.substr(std::min(piece.find('=') + 1, piece.size()));
    if (piece.starts_with("min=")) return parse_bytes_into(rule.min_size, value);
    if (piece.starts_with("max=")) return parse_bytes_into(rule.max_size, value);
    if (piece.starts_with("lib=")) return !(rule.library = value).empty();
    if (piece.starts_with("tag=")) return !(rule.tag = value).empty();
    if (piece != "capture=0") return false;
    rule.intercept = false;
    return true;
}

std::string text_of(const AllocationRule& rule) {
    std::string text;
    if (rule.min_size != 0) text += fmt::format(",min={}", rule.min_size);
    if (rule.max_size != k_no_limit) text += fmt::format(",max={}", rule.max_size);
    if (!rule.library.empty()) text += ",lib=" + rule.library;
    if (!rule.tag.empty()) text += ",tag=" + rule.tag;
    if (!rule.intercept) text += ",capture=0";
    return text.empty() ? std::string(k_any) : text.substr(1);
}

/// The rule that is written so, or nothing. That it is written so exactly settles order, repetition and
/// defaults.
std::optional<AllocationRule> parse_rule(std::string_view text) {
    AllocationRule rule;
    for (std::optional rest = text; text != k_any && rest;)
        if (!set_field(rule, take_piece(rest, ','))) return std::nullopt;
    if (text_of(rule) != text) return std::nullopt;
    return rule;
}

} // namespace

bool names_library(std::string_view name, std::string_view file) noexcept {
    file.remove_prefix(file.rfind('/') + 1); // npos + 1 is 0
    if (!file.starts_with(name)) return false;
    return file.size() == name.size() || file[name.size()] == '.' || file[name.size()] == '-';
}

bool is_valid_library(std::string_view name) noexcept {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '-' || c == '.' || c == '+';
    };
    return !name.empty() && name.size() <= k_max_library_length &&
           std::all_of(name.begin(), name.end(), allowed);
}

std::string problem_with(const AllocationRule& rule) {
    if (rule.min_size > rule.max_size)
        return fmt::format("min_size: {} is more than max_size, {}", format_bytes(rule.min_size),
                           format_bytes(rule.max_size));
    if (!rule.library.empty() && !is_valid_library(rule.library))
        return fmt::format(
            "library: '{}' is not a library's file name: 1 to {} letters, digits, '_', '-', '.' and '+'",
            rule.library, k_max_library_length);
    if (!rule.tag.empty() && !is_valid_tag(rule.tag))
        return fmt::format("tag: '{}' is not a tag: 1 to {} letters, digits, '_', '-', '.' and ':'", rule.tag,
                           k_max_tag_length);
    if (!rule.intercept && !rule.tag.empty()) return "tag: allocations that are not intercepted have no tag";
    return {};
}

Result<AllocationRules> AllocationRules::create(std::vector<AllocationRule> rules) {
    if (rules.size() > k_max_allocation_rules)
        return make_error(ErrorCode::invalid_argument, "there are {} rules, and {} at most are allowed",
                          rules.size(), k_max_allocation_rules);
    for (std::size_t i = 0; i < rules.size(); ++i)
        if (const auto problem = problem_with(rules[i]); !problem.empty())
            return make_error(ErrorCode::invalid_argument, "rule {}, {}", i + 1, problem);
    return AllocationRules(std::move(rules));
}

Result<AllocationRules> AllocationRules::parse(std::string_view text) {
    std::vector<AllocationRule> rules;
    if (text.empty()) return AllocationRules();
    for (std::optional rest = text; rest && rules.size() <= k_max_allocation_rules;) {
        const auto piece = take_piece(rest, ';');
        auto rule = parse_rule(piece);
        if (!rule)
            return make_error(ErrorCode::invalid_argument, "rule {}, '{}', is not a valid rule",
                              rules.size() + 1, piece);
        rules.push_back(*std::move(rule));
    }
    return create(std::move(rules));
}

std::string AllocationRules::text() const {
    std::string text;
    for (const auto& rule : rules_) text += (text.empty() ? "" : ";") + text_of(rule);
    return text;
}

AllocationVerdict AllocationRules::match(Bytes bytes,
                                         std::span<const std::string_view> libraries) const noexcept {
    const auto is_about = [&](const AllocationRule& rule) {
        if (bytes < rule.min_size || bytes > rule.max_size) return false;
        return rule.library.empty() ||
               std::any_of(libraries.begin(), libraries.end(),
                           [&](std::string_view file) { return names_library(rule.library, file); });
    };
    const auto rule = std::find_if(rules_.begin(), rules_.end(), is_about);
    if (rule == rules_.end()) return {};
    return {rule->intercept, rule->tag};
}

bool AllocationRules::name_libraries() const noexcept {
    return std::any_of(rules_.begin(), rules_.end(),
                       [](const AllocationRule& rule) { return !rule.library.empty(); });
}

} // namespace gpu_sleep::model
