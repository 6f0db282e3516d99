// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether a call only adds to a graph that is being captured.

#pragma once

#include "hooks/driver_table.hpp"

namespace gpu_sleep::hooks {

/// Whether work that the calling thread submits to the stream now is recorded, and not done, whatever other
/// threads do meanwhile: it belongs to a capture that this thread began and no other may end. `per_thread`: a
/// null stream is the thread's own.
[[nodiscard]] bool is_recorded(CUstream stream, bool per_thread) noexcept;

} // namespace gpu_sleep::hooks
