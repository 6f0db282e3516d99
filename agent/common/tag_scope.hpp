// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calling thread's tag scope, as the C API's push and pop make it.

#pragma once

#include <string_view>

namespace gpu_sleep::agent {

/// Opens a scope of the calling thread. May throw for want of memory.
void push_scope_tag(std::string_view tag);
/// Closes its innermost one. False: none is open.
[[nodiscard]] bool pop_scope_tag() noexcept;
/// The innermost tag; empty outside of every scope. Valid until the thread's next push or pop.
[[nodiscard]] std::string_view current_scope_tag() noexcept;

} // namespace gpu_sleep::agent
