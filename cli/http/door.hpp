// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The options of a door, which gpu-sleep-http and gpu-run have in common, and starting one beside a program.

#pragma once

#include "cli/http/address.hpp"
#include "cli/usage.hpp"

namespace gpu_sleep::cli::http {

/// Has a token for a door; see gpu-sleep-http(1).
inline constexpr const char* k_token_variable = "GPU_SLEEP_HTTP_TOKEN";

struct DoorOptions {
    std::optional<Address> address;
    std::string token;      ///< empty for none
    std::string token_file; ///< that it was read from
};

/// What is wrong with a token, or nothing.
[[nodiscard]] std::string token_problem(std::string_view token);

/// --http and --http-token. The token's file is read at once.
[[nodiscard]] std::vector<usage::Row> rows(DoorOptions& options);

/// Takes the token of the environment, if there is none of a file. Returns what is wrong with the options
/// together, or nothing.
[[nodiscard]] std::string complete(DoorOptions& options);

/// The same options as words, for a command that has them, too.
[[nodiscard]] std::vector<std::string> words_of(const DoorOptions& options);

/// Starts `words`, the door's file and its arguments, and waits until it listens. It lives until this
/// process, whatever that executes, has ended, and is started again if it ends before. It is neither a child
/// that an ordinary wait() finds, nor an orphan that a program which is the first process or a subreaper
/// would be given. Not while other threads run. Errors: io_failed (it cannot be started, or has
/// failed), invalid_argument (its address is wrong or taken); the door has said on standard error why.
[[nodiscard]] Result<void> start_beside(std::vector<std::string> words);

} // namespace gpu_sleep::cli::http
