// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking for libraries of this process whose use of the GPU cannot be seen.

#pragma once

#include "base/result.hpp"
#include "model/unseen_libraries.hpp"

#include <vector>

namespace gpu_sleep::agent {

/// What is loaded now, in whichever of the loader's namespaces. Reads the kernel's list of mappings and not
/// the loader's of libraries: the loader's lock may be held by a thread that waits at the gate. Thread-safe.
/// Errors: io_failed.
[[nodiscard]] Result<std::vector<model::UnseenLibrary>> find_unseen_libraries();

} // namespace gpu_sleep::agent
