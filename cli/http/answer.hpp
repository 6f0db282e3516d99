// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is answered to a request, and the statuses of HTTP that are used. Source: RFC 9110, section 15.

#pragma once

#include "base/error.hpp"

#include <string>
#include <string_view>

namespace gpu_sleep::cli::http {

inline constexpr int k_ok = 200;
inline constexpr int k_bad_request = 400;
inline constexpr int k_unauthorized = 401;
inline constexpr int k_forbidden = 403;
inline constexpr int k_not_found = 404;
inline constexpr int k_wrong_method = 405;
inline constexpr int k_conflict = 409; ///< the same request may do another time
inline constexpr int k_too_large = 413;
inline constexpr int k_internal = 500;
inline constexpr int k_unavailable = 503;
inline constexpr int k_timed_out = 504;
inline constexpr int k_no_storage = 507;

struct Answer {
    int status = k_ok;
    std::string body;
    std::string_view type = "application/json";
};

/// In the JSON form of the commands; the status is that of the error's exit status, and the advice that of
/// its code, where none is given.
[[nodiscard]] Answer answer_of(const Error& error);
[[nodiscard]] Answer answer_of(int status, const Error& error, std::string_view advice = {});

} // namespace gpu_sleep::cli::http
