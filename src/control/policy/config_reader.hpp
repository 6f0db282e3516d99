// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reads the entries of a configuration into settings. Knows no TOML: config_file.cpp parses that.

#pragma once

#include "control/policy/policy.hpp"

namespace gpu_sleep::control::policy {

/// A value of a file that a setting can have; anything else is `other`, by the word that TOML has for it.
struct OtherValue {
    std::string kind;
};
/// A section without keys.
struct EmptySection {};
using Value = std::variant<bool, std::string, std::vector<std::string>, OtherValue, EmptySection>;

/// A key and its value, such as {"user", "alice", "min-awake"}, and the line in which it is.
struct Entry {
    std::vector<std::string> path;
    Value value;
    std::uint32_t line = 0;
};

/// Puts the entry into `file`. Returns what is wrong with it, or nothing: without file and line.
[[nodiscard]] std::string put_entry(Configuration& file, const Entry& entry, Author author);

} // namespace gpu_sleep::control::policy
