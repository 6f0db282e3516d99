// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The options of a door, which gpu-sleep-http and gpu-run have in common.

#pragma once

#include "cli/http/address.hpp"
#include "cli/usage.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli::http {

/// Has a token for a door; see gpu-sleep-http(1).
inline constexpr const char* k_token_variable = "GPU_SLEEP_HTTP_TOKEN";

struct Options {
    std::optional<Address> address;
    std::string token;             ///< empty for none
    std::string token_file;        ///< that it was read from
    std::vector<std::string> open; ///< networks
};

/// What is wrong with a token, or nothing.
[[nodiscard]] std::string token_problem(std::string_view token);

/// --http, --http-token, --http-open. The token's file is read at once.
[[nodiscard]] std::vector<usage::Row> rows(Options& options);

/// Takes the token of the environment, if there is none of a file. Returns what is wrong with the options
/// together, or nothing.
[[nodiscard]] std::string complete(Options& options);

/// The same options as words, for a command that has them, too.
[[nodiscard]] std::vector<std::string> words_of(const Options& options);

} // namespace gpu_sleep::cli::http
