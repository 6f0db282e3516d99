// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for others, and asking a last time.

#include "sleep/point_of_no_return.hpp"

namespace gpu_sleep::sleep {

Result<void> pass_point_of_no_return(const contents::Control& control) {
    if (Clock::now() >= control.deadline)
        return make_error(ErrorCode::timed_out, "the time was over when all was ready, and it was undone");
    const auto is_told = control.wait_for_others();
    if (!is_told) return is_told.error();
    if (control.progress({model::Progress::Phase::release, 0, 0}) || *is_told) return {};
    return make_error(ErrorCode::cancelled, "the request was withdrawn");
}

} // namespace gpu_sleep::sleep
