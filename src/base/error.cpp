// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of errors, and errors made from errno.

#include "base/error.hpp"

#include <algorithm>
#include <array>
#include <system_error>

namespace gpu_sleep {
namespace {

using namespace exit_status;

constexpr std::array k_errors = {
    ErrorTraits{ErrorCode::internal, "internal", failed_awake, failed_asleep,
                "this is a bug: please report it"},
    ErrorTraits{ErrorCode::invalid_argument, "invalid_argument", usage, usage, ""},
    ErrorTraits{ErrorCode::unknown_tag, "unknown_tag", usage, usage,
                "gpu-ps PID lists the tags of a process"},
    ErrorTraits{ErrorCode::no_process, "no_process", no_process, no_process,
                "gpu-ps lists the processes that can be put to sleep"},
    ErrorTraits{ErrorCode::no_agent, "no_agent", no_process, no_process, ""},
    ErrorTraits{ErrorCode::timed_out, "timed_out", timed_out, timed_out,
                "try again, or allow more time with --timeout"},
    ErrorTraits{ErrorCode::not_permitted, "not_permitted", not_permitted, not_permitted, ""},
    ErrorTraits{
        ErrorCode::damaged, "damaged", damaged, damaged,
        "if a file is damaged and you have a copy, restore it, then: gpu-wake PID; if the program can "
        "refill the tag, drop its contents and wake it: gpu-sleep PID --tags TAG --discard TAG && "
        "gpu-wake PID; otherwise restart the program"},
    ErrorTraits{ErrorCode::driver_failed, "driver_failed", failed_awake, failed_asleep, ""},
    ErrorTraits{ErrorCode::out_of_device_memory, "out_of_device_memory", failed_awake, failed_asleep,
                "free GPU memory, retry with --wait 60s, or put other processes to sleep with --make-room"},
    ErrorTraits{ErrorCode::out_of_host_memory, "out_of_host_memory", no_host_memory, failed_asleep,
                "keep the rest in files with gpu-sleep --spill DIR, free host memory, raise "
                "gpu-run --host-budget, or drop contents with --level 2"},
    ErrorTraits{ErrorCode::refused, "refused", failed_awake, failed_asleep, ""},
    ErrorTraits{ErrorCode::capture_in_progress, "capture_in_progress", timed_out, timed_out,
                "try again when the capture is over"},
    ErrorTraits{ErrorCode::cancelled, "cancelled", failed_awake, failed_asleep, ""},
    ErrorTraits{ErrorCode::protocol_mismatch, "protocol_mismatch", failed_awake, failed_asleep,
                "use commands and an agent of the same version"},
    ErrorTraits{ErrorCode::connection_lost, "connection_lost", failed_awake, failed_asleep,
                "gpu-ps PID shows what state the process is in"},
    ErrorTraits{ErrorCode::io_failed, "io_failed", failed_awake, failed_asleep, ""},
    ErrorTraits{ErrorCode::no_refill, "no_refill", failed_awake, failed_asleep,
                "declare a refill in the program, keep the tag with --keep, or leave out --require-refill"},
    ErrorTraits{ErrorCode::no_driver, "no_driver", failed_awake, failed_asleep,
                "is the NVIDIA driver installed?"},
    ErrorTraits{ErrorCode::not_owned, "not_owned", failed_awake, failed_asleep, ""},
    ErrorTraits{ErrorCode::context_lost, "context_lost", failed_awake, failed_asleep,
                "restart the program: it can no longer use its GPU"},
    ErrorTraits{ErrorCode::unseen_library, "unseen_library", failed_awake, failed_asleep,
                "stop that work yourself, then use gpu-sleep --force"},
    ErrorTraits{ErrorCode::out_of_disk, "out_of_disk", no_host_memory, failed_asleep,
                "free disk space, or name another directory"},
    ErrorTraits{ErrorCode::out_of_threads, "out_of_threads", failed_awake, failed_asleep,
                "raise the thread limit of the process's user or control group (ulimit -u, pids.max)"},
    ErrorTraits{ErrorCode::outcome_unknown, "outcome_unknown", outcome_unknown, outcome_unknown,
                "gpu-ps PID shows its state, once it answers"},
    ErrorTraits{ErrorCode::ambiguous_name, "ambiguous_name", usage, usage, "name one by its pid"},
    ErrorTraits{ErrorCode::agent_unreachable, "agent_unreachable", no_process, no_process, ""},
    ErrorTraits{ErrorCode::inhibited, "inhibited", failed_awake, failed_asleep,
                "allow sleeps with gpu-inhibit --release PID, or use gpu-sleep --ignore-inhibitors"},
    ErrorTraits{ErrorCode::stopped, "stopped", timed_out, timed_out,
                "resume it first: with kill -CONT PID, in its debugger, or by thawing its control group"},
};

} // namespace

std::span<const ErrorTraits> all_errors() noexcept {
    return k_errors;
}

const ErrorTraits& traits(ErrorCode code) noexcept {
    const auto* row =
        std::find_if(k_errors.begin(), k_errors.end(), [=](const ErrorTraits& e) { return e.code == code; });
    return row == k_errors.end() ? k_errors.front() : *row;
}

Error errno_error(ErrorCode code, int error_number, std::string_view call, std::string_view subject) {
    const auto reason = std::generic_category().message(error_number);
    return Error{code, fmt::format("{}: {} ({})", subject, reason, call), std::string(call), error_number};
}

} // namespace gpu_sleep
