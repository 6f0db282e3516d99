// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Counting, and asking whether to go on.

#include "contents/progress.hpp"

#include <algorithm>

namespace gpu_sleep::contents {

Result<void> ProgressCounter::add(Bytes bytes) {
    const std::lock_guard lock(mutex_);
    done_ = std::min(done_ + bytes, total_);
    if (!stopped_ && !control_.progress({model::Progress::Phase::transfer, done_, total_})) stopped_ = true;
    if (stopped_) return make_error(ErrorCode::cancelled, "the request was withdrawn");
    if (Clock::now() < control_.deadline) return {};
    stopped_ = true;
    return make_error(ErrorCode::timed_out, "time ran out when {} of {} had been copied", format_bytes(done_),
                      format_bytes(total_));
}

} // namespace gpu_sleep::contents
