// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The door: requests by HTTP, given to the program behind it.

#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"
#include "cli/http/admission.hpp"
#include "cli/http/backend.hpp"

#include <memory>

namespace gpu_sleep::cli::http {

/// Answers until what it returns is let go, which withdraws what is under way, as far as that goes, and
/// answers what waits. One thread speaks HTTP and waits for nothing else; one asks how the program stands,
/// one measures, and one puts it to sleep and wakes it, in the order of the requests. `listener` listens, and
/// has a non-blocking socket. The owner has no type, so that libmicrohttpd stays out of this header. Errors:
/// io_failed.
[[nodiscard]] Result<std::shared_ptr<void>> serve(UniqueFd listener, Admission admission, Backend backend);

} // namespace gpu_sleep::cli::http
