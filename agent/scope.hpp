// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calling thread's tag scope, as the C API's push and pop make it.

#pragma once

#include <string_view>

namespace gpu_sleep::agent {

/// The innermost tag; empty outside of every scope. Valid until the thread's next push or pop.
[[nodiscard]] std::string_view current_scope_tag() noexcept;

} // namespace gpu_sleep::agent
