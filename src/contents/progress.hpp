// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How far a transaction is: counted, and told to the asker, who may withdraw the request.

#pragma once

#include "base/guard.hpp"
#include "base/thread_safety.hpp"
#include "model/model.hpp"

namespace gpu_sleep::contents {

/// How the asker follows a transaction, may withdraw it, and how long they give it. Called from several
/// threads, one at a time.
struct Control {
    /// Told how far the transaction is; false withdraws the request, which is heeded until the point of no
    /// return.
    std::function<bool(const model::Progress&)> progress = [](const model::Progress&) { return true; };
    /// Heeded as far as a withdrawal is. Read where `progress` is called.
    Clock::time_point deadline = Clock::time_point::max();
    /// How long it waits for host memory that is short, for each piece: virtual machines may grow while they
    /// are used. None where the asker has something to give back, and then tries again.
    Milliseconds host_patience{2'000};
    /// Called when all is ready, before the point of no return: waits for other processes that go together
    /// with this one. True: the asker has said to go on, and can withdraw no more. Errors: cancelled,
    /// timed_out.
    std::function<Result<bool>()> wait_for_others = [] { return Result<bool>(false); };
};

/// Runs `call`, which may take minutes and tells nothing meanwhile: a flush, a removal of large files, a call
/// of the driver. The asker is told when it begins and when it has ended (Progress::in_call). Returns its
/// result.
template <class Call>
auto telling_of_call(const std::function<bool(const model::Progress&)>& progress, Call&& call,
                     model::Progress::Phase phase = model::Progress::Phase::waiting) {
    const auto tell = [&](bool begins) { // that memory runs out as it is told must not undo the call
        ignoring_errors([&] { static_cast<void>(progress({.phase = phase, .in_call = begins})); });
    };
    tell(true);
    auto done = call();
    tell(false);
    return done;
}

/// Counts bytes moved on all devices, tells the asker, and heeds its withdrawal and its deadline.
/// Thread-safe.
class ProgressCounter {
public:
    /// `control` outlives it. `total`: bytes that are to be moved in all.
    ProgressCounter(const Control& control, Bytes total) noexcept : control_(control), total_(total) {}

    /// The sum never passes the total, though something be copied twice. Errors: cancelled, timed_out (the
    /// asker's deadline has passed).
    [[nodiscard]] Result<void> add(Bytes bytes) {
        const MutexLock lock(mutex_);
        done_ = std::min(done_ + bytes, total_);
        if (!tell()) stopped_ = true;
        if (stopped_) return make_error(ErrorCode::cancelled, "the request was withdrawn");
        if (Clock::now() < control_.deadline) return {};
        stopped_ = true;
        return make_error(ErrorCode::timed_out, "time ran out when {} of {} had been copied",
                          format_bytes(done_), format_bytes(total_));
    }
    /// The device's thread begins a call that may take minutes, or has ended it (Progress::in_call).
    void note_call(bool begins) {
        const MutexLock lock(mutex_);
        calls_ += begins ? 1 : -1;
        static_cast<void>(tell());
    }
    /// Ends the transfer on every device after one has failed.
    void stop() noexcept { stopped_ = true; }
    [[nodiscard]] Milliseconds host_patience() const noexcept { return control_.host_patience; }

private:
    [[nodiscard]] bool tell() GPU_SLEEP_REQUIRES(mutex_) {
        return stopped_ || control_.progress({.phase = model::Progress::Phase::transfer,
                                              .done = done_,
                                              .total = total_,
                                              .in_call = calls_ > 0});
    }

    const Control& control_;
    Mutex mutex_; ///< one call of the asker at a time
    const Bytes total_;
    Bytes done_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    int calls_ GPU_SLEEP_GUARDED_BY(mutex_) = 0; ///< under way
    std::atomic<bool> stopped_{false};
};

} // namespace gpu_sleep::contents
