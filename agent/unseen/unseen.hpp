// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding how this process uses the GPU past the agent.

#pragma once

#include "base/error.hpp"
#include "model/unseen_libraries.hpp"

namespace gpu_sleep::agent::unseen {

/// The libraries that are loaded now, in whichever of the loader's namespaces, and then as
/// find_calls(). Reads the kernel's list of mappings and not the loader's of libraries: the loader's
/// lock may be held by a thread that waits at the gate. To look at where all libraries' calls lead takes up
/// to 30 ms, and may read from their files: others are told what the last such look has found. Thread-safe.
/// Errors: io_failed.
enum class Look { libraries, calls };
[[nodiscard]] Result<std::vector<model::UnseenUse>> find_uses(Look look = Look::libraries);

/// The calls that this build does not know, each once: each may have given the GPU work or taken memory
/// unseen. Thread-safe.
[[nodiscard]] std::vector<model::UnseenUse> find_calls();

/// Whether neither find_uses(), with a look at all calls, nor find_calls() finds any. Errors:
/// unseen_library; io_failed (it is not known).
[[nodiscard]] Result<void> check_all();
[[nodiscard]] Result<void> check_calls();

/// One or more of them, in words.
[[nodiscard]] std::string words_for(const std::vector<model::UnseenUse>& uses);

} // namespace gpu_sleep::agent::unseen
