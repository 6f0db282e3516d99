// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading the environment's settings: one that makes no sense is named, and its default applies.

#pragma once

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/units.hpp"

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace gpu_sleep::agent {

/// The value of a variable; empty when it is not set.
inline std::string_view setting(const char* name) noexcept {
    const char* value = std::getenv(name);
    return value ? value : "";
}

/// Says that the setting is ignored, because its value is not one of those `allowed`. Called once for each.
inline void refuse_setting(const char* name, std::string_view allowed) noexcept {
    log::error("{} is ignored: '{}' is not {}", name, setting(name), allowed);
}

/// Returns the setting as `parse` reads it. Empty if it is not set, or refused.
template <class Parse>
auto parsed_setting(const char* name, std::string_view allowed, Parse&& parse)
    -> decltype(parse(std::string_view())) {
    const auto text = setting(name);
    if (text.empty()) return std::nullopt;
    auto value = parse(text);
    if (!value) refuse_setting(name, allowed);
    return value;
}

/// A number of milliseconds, at most k_max_duration.
inline std::optional<Milliseconds> parse_limit(std::string_view text) noexcept {
    const auto count = parse_number<std::uint64_t>(text);
    return count && *count <= static_cast<std::uint64_t>(k_max_duration.count())
               ? std::optional(Milliseconds(*count))
               : std::nullopt;
}

/// "1" or "0".
inline std::optional<bool> parse_switch(std::string_view text) noexcept {
    return text == "1" || text == "0" ? std::optional(text == "1") : std::nullopt;
}

/// A setting of a time. Nothing when it is not set, or refused.
inline std::optional<Milliseconds> limit_setting(const char* name) {
    return parsed_setting(name, "a number of milliseconds, at most 10000 days", parse_limit);
}
/// A setting that is on or off. Nothing when it is not set, or refused.
inline std::optional<bool> switch_setting(const char* name) {
    return parsed_setting(name, "1 or 0", parse_switch);
}
/// A setting of a size. Nothing when it is not set, or refused.
inline std::optional<Bytes> bytes_setting(const char* name) {
    return parsed_setting(name, "a number of bytes", parse_number<Bytes>);
}

} // namespace gpu_sleep::agent
