// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Counting, and asking whether to go on.

#include "contents/progress.hpp"

#include <algorithm>

namespace gpu_sleep::contents {

Result<void> ProgressCounter::add(Bytes bytes) {
    const std::lock_guard lock(mutex_);
    done_ = std::min(done_ + bytes, total_);
    if (!tell()) stopped_ = true;
    if (stopped_) return make_error(ErrorCode::cancelled, "the request was withdrawn");
    if (Clock::now() < control_.deadline) return {};
    stopped_ = true;
    return make_error(ErrorCode::timed_out, "time ran out when {} of {} had been copied", format_bytes(done_),
                      format_bytes(total_));
}

void ProgressCounter::note_call(bool begins) {
    const std::lock_guard lock(mutex_);
    calls_ += begins ? 1 : -1;
    static_cast<void>(tell());
}

bool ProgressCounter::tell() {
    return stopped_ || control_.progress({.phase = model::Progress::Phase::transfer,
                                          .done = done_,
                                          .total = total_,
                                          .in_call = calls_ > 0});
}

} // namespace gpu_sleep::contents
