// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The options of a door, which gpu-sleep-http and gpu-run have in common.

#pragma once

#include "cli/http/address.hpp"
#include "cli/usage.hpp"

#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::cli::http {

/// Has a token for a door; see gpu-sleep-http(1).
inline constexpr const char* k_token_variable = "GPU_SLEEP_HTTP_TOKEN";

struct Options {
    std::optional<Address> address;
    std::string token_file;        ///< empty for none
    std::vector<std::string> open; ///< networks
};

/// --http, --http-token, --http-open.
[[nodiscard]] std::vector<usage::Row> rows(Options& options);

/// What is wrong with them together, or nothing.
[[nodiscard]] std::string problem(const Options& options);

/// The same options as words, for a command that has them, too.
[[nodiscard]] std::vector<std::string> words_of(const Options& options);

} // namespace gpu_sleep::cli::http
