// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The one point of no return, which every sleep passes, and every wake that moves memory.

#pragma once

#include "contents/progress.hpp"

namespace gpu_sleep::sleep {

/// Waits for others that go together with this one (Control::wait_for_others), for whom the deadline is not
/// heeded any more, and asks a last time whether to go on. From here on neither a withdrawal nor the deadline
/// is heeded, and the asker has been told so. All is ready, and can still be undone; where memory is moved,
/// its mutex is held. Errors: cancelled, timed_out.
[[nodiscard]] Result<void> pass_point_of_no_return(const contents::Control& control);

} // namespace gpu_sleep::sleep
