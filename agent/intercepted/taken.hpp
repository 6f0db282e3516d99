// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What was taken out of the books because its context may go.

#pragma once

#include <functional>

namespace gpu_sleep::agent::intercepted {

/// What was taken out of the books because its context may go.
struct Taken {
    std::function<void()> gone;  ///< frees it
    std::function<void()> stays; ///< puts it back
};

} // namespace gpu_sleep::agent::intercepted
