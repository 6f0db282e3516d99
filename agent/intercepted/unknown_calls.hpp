// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which entry points of libcuda were called that this build does not know: of a newer driver, or such as its
// cuda.h lacked.

#pragma once

#include <string>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// Notes a call, inside the gate: who closes it, and looks then, sees the note. Takes no memory, and keeps
/// `name`, which lives as long as the process. Thread-safe.
void note_unknown_call(const char* name) noexcept;

/// The names that were noted, each once. Each may have given the GPU work or taken memory unseen.
/// Thread-safe.
[[nodiscard]] std::vector<std::string> called_unknown();

} // namespace gpu_sleep::agent::intercepted
