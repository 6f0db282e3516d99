// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calling thread's tag scope, as the C API's push and pop make it.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::agent {

/// The tags of the scopes that the thread has opened, the innermost last.
inline thread_local std::vector<std::string> t_scope_tags;

/// The innermost tag; empty outside of every scope. Valid until the thread's next push or pop.
[[nodiscard]] inline std::string_view current_scope_tag() noexcept {
    return t_scope_tags.empty() ? std::string_view() : std::string_view(t_scope_tags.back());
}

} // namespace gpu_sleep::agent
