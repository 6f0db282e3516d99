// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading and matching rules.

#include "model/allocation_rules.hpp"

#include "base/text.hpp"
#include "model/terms.hpp"

namespace gpu_sleep::model {
namespace {

/// Takes what precedes `separator`, or all, off the front of `text`, and the separator. A separator at the
/// end leaves an empty piece behind, which is no rule and no field.
std::string_view take_piece(std::optional<std::string_view>& text, char separator) {
    const auto end = text->find(separator);
    const auto piece = text->substr(0, end);
    if (end == std::string_view::npos)
        text.reset();
    else
        text->remove_prefix(end + 1);
    return piece;
}

/// Reads a field into `rule`. Returns what is wrong with it, or nothing.
std::string set_field(AllocationRule& rule, std::string_view field) {
    const auto name = field.substr(0, field.find('='));
    const auto value = field.substr(std::min(name.size() + 1, field.size()));
    if (name == "min" || name == "max") {
        const auto number = parse_number<Bytes>(value);
        const auto bytes = number ? Result<Bytes>(*number) : parse_bytes(value);
        if (!bytes) return bytes.error().message;
        (name == "min" ? rule.min_size : rule.max_size) = *bytes;
    } else if ((name == "lib" || name == "tag") && !value.empty()) {
        (name == "lib" ? rule.library : rule.tag) = value;
    } else if (field == "capture=0") {
        rule.intercept = false;
    } else {
        return fmt::format("'{}' is none of min=SIZE, max=SIZE, lib=NAME, tag=TAG and capture=0", field);
    }
    return {};
}

bool is_valid_library(std::string_view name) noexcept {
    constexpr std::string_view k_allowed =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.+";
    return name.size() <= k_max_library_length && name.find_first_not_of(k_allowed) == name.npos;
}

/// What is wrong with a rule, or nothing.
std::string problem_with(const AllocationRule& rule) {
    if (rule.min_size > rule.max_size)
        return fmt::format("min, {}, is more than max, {}", format_bytes(rule.min_size),
                           format_bytes(rule.max_size));
    if (!is_valid_library(rule.library))
        return fmt::format(
            "'{}' is not a library's file name: 1 to {} letters, digits, '_', '-', '.' and '+'", rule.library,
            k_max_library_length);
    if (!rule.tag.empty() && !is_valid_tag(rule.tag))
        return fmt::format("'{}' is not a tag: 1 to {} letters, digits, '_', '-', '.' and ':'", rule.tag,
                           k_max_tag_length);
    return rule.intercept || rule.tag.empty() ? "" : "allocations that are not intercepted have no tag";
}

} // namespace

bool names_library(std::string_view name, std::string_view file) noexcept {
    file.remove_prefix(file.rfind('/') + 1); // npos + 1 is 0
    if (!file.starts_with(name)) return false;
    return file.size() == name.size() || file[name.size()] == '.' || file[name.size()] == '-';
}

Result<AllocationRules> AllocationRules::parse(std::string_view text) {
    AllocationRules all;
    if (text.empty()) return all;
    for (std::optional rest = text; rest;) {
        const auto piece = take_piece(rest, ';');
        AllocationRule rule;
        std::string problem;
        for (std::optional fields = piece; piece != "any" && fields && problem.empty();)
            problem = set_field(rule, take_piece(fields, ','));
        if (problem.empty()) problem = problem_with(rule);
        if (problem.empty() && all.rules_.size() == k_max_allocation_rules)
            problem = fmt::format("at most {} are allowed", k_max_allocation_rules);
        if (!problem.empty())
            return make_error(ErrorCode::invalid_argument, "rule {}: {}", all.rules_.size() + 1, problem);
        all.rules_.push_back(std::move(rule));
    }
    return all;
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
