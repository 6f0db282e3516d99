// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Rules for allocations, read from a JSON file that a person writes.

#pragma once

#include "model/allocation_rules.hpp"

namespace gpu_sleep::cli {

/// Reads {"rules": [{"min_size": "64MiB", "max_size": "1GiB", "library": "libtorch_cuda", "tag": "weights"},
/// {"library": "libcublas", "capture": false}]}. Sizes are texts with units or numbers of bytes; every member
/// may be left out. `name` is what messages call the text. Errors: invalid_argument (where, by line, or rule
/// and member).
[[nodiscard]] Result<model::AllocationRules> parse_rules(std::string_view text, std::string_view name);

/// The same, of a file. Errors: io_failed as well.
[[nodiscard]] Result<model::AllocationRules> read_rules_file(const std::string& path);

} // namespace gpu_sleep::cli
