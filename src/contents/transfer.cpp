// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Telling what has passed.

#include "contents/transfer.hpp"

#include "base/guard.hpp"

#include <algorithm>

namespace gpu_sleep::contents {

Transfer::~Transfer() {
    if (staging) ignoring_errors([this] { static_cast<void>(session.synchronize()); });
}

Result<void> Transfer::queued(Bytes bytes, bool is_coded) {
    GPU_SLEEP_TRY(session.mark(bytes, is_coded));
    return look();
}

Result<void> Transfer::look() {
    const auto bytes = session.look_at_marks();
    return bytes ? progress.add(*bytes) : bytes.error();
}

Result<void> Transfer::wait() {
    return session.wait_marks([this](Bytes bytes) { return progress.add(bytes); });
}

Result<void> Transfer::with_staging(std::size_t slots, const std::function<Result<void>(Staging&)>& job) {
    for (;;) {
        if (staging) slots = staging->slots();
        Result<void> done;
        if (!staging) {
            auto made = Staging::create(pinner, slots, options, progress);
            if (made)
                staging = *std::move(made);
            else
                done = std::move(made).error();
        }
        if (staging) done = job(*staging);
        if (done || slots == Staging::k_min_slots || done.error().code != ErrorCode::out_of_host_memory)
            return done;
        // What a file in host memory lacks is more than a ring has.
        if (staging && done.error().where == store::HostBudget::k_where) return done;
        GPU_SLEEP_TRY(session.synchronize()); // nothing may still use the ring
        staging.reset();
        slots = std::max(slots / 2, Staging::k_min_slots);
    }
}

} // namespace gpu_sleep::contents
