// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of errors with the exit status and the advice of each, and Result<T>: a value or an Error. This
// is how every function that can fail reports it; nothing here throws.

#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace gpu_sleep {

/// The exit statuses of every command; gpu-sleep(1) describes them.
namespace exit_status {
inline constexpr int done = 0;
inline constexpr int failed_awake = 1;
inline constexpr int usage = 2;
inline constexpr int no_process = 3;
inline constexpr int timed_out = 4;
inline constexpr int not_permitted = 5;
inline constexpr int damaged = 6;
inline constexpr int failed_asleep = 7;
inline constexpr int no_host_memory = 8;
inline constexpr int outcome_unknown = 9;
} // namespace exit_status

/// The one that matters more to who asked several, of two exit statuses: what may be lost comes first, then
/// what is not known, and 0 last. One that has no place here matters more than all.
[[nodiscard]] constexpr int worse_of(int one, int other) noexcept {
    constexpr int k_worst_last[] = {
        exit_status::done,          exit_status::usage,         exit_status::no_process,
        exit_status::not_permitted, exit_status::failed_awake,  exit_status::no_host_memory,
        exit_status::timed_out,     exit_status::failed_asleep, exit_status::outcome_unknown,
        exit_status::damaged};
    for (const int status : k_worst_last) {
        if (status == one) return other;
        if (status == other) return one;
    }
    return one;
}

/// The kind of an error. The numbers are sent between command and agent: never change one, add at the end. A
/// new one also needs a row in error.cpp (word, exit statuses, advice), a case in agent/api.cpp, its word in
/// "Words of error.code" of gpu-ps.1, a class in agent/python/gpu_sleep/errors.py if programs handle it, and
/// a place in tests/unit/error_test.cpp.
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

/// Holds a T or an Error. Reading the side that is not there is a bug (undefined, as for std::optional).
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    [[nodiscard]] T& operator*() & noexcept { return *std::get_if<0>(&state_); }
    [[nodiscard]] const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
    [[nodiscard]] T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
    [[nodiscard]] T* operator->() noexcept { return std::get_if<0>(&state_); }
    [[nodiscard]] const T* operator->() const noexcept { return std::get_if<0>(&state_); }

    [[nodiscard]] T take() && { return std::move(*std::get_if<0>(&state_)); }

    [[nodiscard]] Error& error() & noexcept { return *std::get_if<1>(&state_); }
    [[nodiscard]] const Error& error() const& noexcept { return *std::get_if<1>(&state_); }
    [[nodiscard]] Error&& error() && noexcept { return std::move(*std::get_if<1>(&state_)); }

private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return !error_.has_value(); }
    explicit operator bool() const noexcept { return has_value(); }

    void take() && noexcept {}

    [[nodiscard]] Error& error() & noexcept { return *error_; }
    [[nodiscard]] const Error& error() const& noexcept { return *error_; }
    [[nodiscard]] Error&& error() && noexcept { return *std::move(error_); }

private:
    std::optional<Error> error_;
};

/// Makes an Error with a formatted message.
template <class... Args>
[[nodiscard]] Error make_error(ErrorCode code, fmt::format_string<Args...> text, const Args&... args) {
    return Error{code, fmt::vformat(text, fmt::make_format_args(args...)), {}, 0};
}

/// Makes an Error for a failed system call; reads nothing but the number it is given.
[[nodiscard]] Error errno_error(ErrorCode code, int error_number, std::string_view call,
                                std::string_view subject);

} // namespace gpu_sleep

/// The value of an expression, a Result. If that has an error, leaves the enclosing function with it. Stands
/// alone or behind a `=`: of a larger expression, what is made before it would not be destroyed.
#define GPU_SLEEP_TRY(...)                                                                                   \
    ({                                                                                                       \
        auto gpu_sleep_try_result = (__VA_ARGS__);                                                           \
        if (!gpu_sleep_try_result) return std::move(gpu_sleep_try_result).error();                           \
        std::move(gpu_sleep_try_result).take();                                                              \
    })
