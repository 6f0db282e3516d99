// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of errors, and the table with the exit status and the advice of each.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpu_sleep {

/// What went wrong. The numbers are sent between command and agent: never change one, add at the end.
enum class ErrorCode : std::uint16_t {
    internal = 1,
    invalid_argument = 2,
    unknown_tag = 3,
    no_process = 4,
    no_agent = 5,
    timed_out = 6,
    not_permitted = 7,
    damaged = 8,
    driver_failed = 9,
    out_of_device_memory = 10,
    out_of_host_memory = 11,
    refused = 12,
    capture_in_progress = 13,
    cancelled = 14,
    protocol_mismatch = 15,
    connection_lost = 16,
    io_failed = 17,
    no_refill = 18,
    no_driver = 19,
    not_owned = 20,
    context_lost = 21,
    unseen_library = 22,
    out_of_disk = 23,
    out_of_threads = 24,
    outcome_unknown = 25,
    ambiguous_name = 26,
    agent_unreachable = 27,
    inhibited = 28,
    stopped = 29,
};

struct Error {
    ErrorCode code = ErrorCode::internal;
    std::string message;   ///< what happened, to which process and range, and what to do
    std::string where;     ///< the call or step that failed, such as "cuMemCreate"; may be empty
    int driver_status = 0; ///< the CUresult or errno behind it; 0 when there is none
    /// Seconds until it may succeed, where only the time is missing for which others are left awake.
    std::optional<double> retry_seconds{};
};

/// One row of the table of errors.
struct ErrorTraits {
    ErrorCode code;
    std::string_view name;   ///< stable word used in JSON output
    int exit_status;         ///< status when the process is awake afterwards
    int exit_status_asleep;  ///< status when anything of it is asleep afterwards
    std::string_view advice; ///< one line for the person at the terminal; may be empty; see advice_from()
};

/// Every known error, ordered by code.
[[nodiscard]] std::span<const ErrorTraits> all_errors() noexcept;

/// The row of `code`; a number that no row has (sent by a newer peer) gets the row of `internal`.
[[nodiscard]] const ErrorTraits& traits(ErrorCode code) noexcept;

} // namespace gpu_sleep
