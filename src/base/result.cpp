// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Errors made from errno.

#include "base/result.hpp"

#include <system_error>

namespace gpu_sleep {

Error errno_error(ErrorCode code, int error_number, std::string_view call, std::string_view subject) {
    const auto reason = std::generic_category().message(error_number);
    return Error{code, fmt::format("{}: {} ({})", subject, reason, call), std::string(call), error_number};
}

} // namespace gpu_sleep
