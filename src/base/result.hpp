// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Result<T>: a value or an Error. How every function that can fail reports it; nothing here throws.

#pragma once

#include "base/error.hpp"

#include <fmt/core.h>

#include <optional>
#include <utility>
#include <variant>

namespace gpu_sleep {

/// Holds a T or an Error. Reading the side that is not there is a bug (undefined, as for std::optional).
template <class T>
class [[nodiscard]] Result {
public:
    using value_type = T;

    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    [[nodiscard]] T& operator*() & noexcept { return *std::get_if<0>(&state_); }
    [[nodiscard]] const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
    [[nodiscard]] T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
    [[nodiscard]] T* operator->() noexcept { return std::get_if<0>(&state_); }
    [[nodiscard]] const T* operator->() const noexcept { return std::get_if<0>(&state_); }

    [[nodiscard]] Error& error() & noexcept { return *std::get_if<1>(&state_); }
    [[nodiscard]] const Error& error() const& noexcept { return *std::get_if<1>(&state_); }
    [[nodiscard]] Error&& error() && noexcept { return std::move(*std::get_if<1>(&state_)); }

private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
public:
    using value_type = void;

    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    [[nodiscard]] bool has_value() const noexcept { return !error_.has_value(); }
    explicit operator bool() const noexcept { return has_value(); }

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

/// Leaves the enclosing function with the error of `expression`, a Result<void>, if it has one.
#define GPU_SLEEP_TRY(expression)                                                                            \
    do {                                                                                                     \
        if (auto gpu_sleep_try_result = (expression); !gpu_sleep_try_result)                                 \
            return std::move(gpu_sleep_try_result).error();                                                  \
    } while (false)
