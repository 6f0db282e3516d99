// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A thread that asks PyTorch, and how long a sleep waits for it.

#include "torch/torch_trim.hpp"

#include "base/log.hpp"
#include "base/quiet_thread.hpp"
#include "common/lock_order.hpp"
#include "intercepted/own_contexts.hpp"
#include "python/functions.hpp"
#include "torch/torch_cache.hpp"

#include <utility>

namespace gpu_sleep::agent::torch {

struct TorchTrim::Work {
    CacheRequest request;
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Condition changed;
    bool is_done GPU_SLEEP_GUARDED_BY(mutex) = false;

    void finish() {
        const MutexLock lock(mutex);
        is_done = true;
        changed.notify_all();
    }
    /// Waits a moment for it; whether it is done.
    [[nodiscard]] bool wait(Milliseconds moment) {
        MutexLock lock(mutex);
        return changed.wait_for(mutex, moment, [this]() GPU_SLEEP_REQUIRES(mutex) { return is_done; });
    }
};

std::shared_ptr<TorchTrim::Work> TorchTrim::start() {
    auto work = std::make_shared<Work>();
    auto thread = start_quiet_thread("gpu-sleep-trim", [work] {
        empty_torch_cache(work->request, [] { return intercepted::enter_primary_context(); });
        work->finish();
    });
    if (!thread) return nullptr;
    thread->detach();
    return work;
}

Result<void> TorchTrim::run(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    constexpr Milliseconds k_patience{2'000}; ///< until it begins
    constexpr Milliseconds k_look{10};
    if (!begun_ && !python::functions()) return {}; // a program without Python
    const auto last_begin = Clock::now() + k_patience;
    const auto work = begun_ ? std::exchange(begun_, nullptr) : start();
    while (work && !work->wait(k_look)) {
        const auto now = Clock::now();
        const bool goes_on = keep_going();
        if (goes_on && now < deadline && now < last_begin) continue;
        if (work->request.give_up()) {
            if (!goes_on) return make_error(ErrorCode::cancelled, "the request was withdrawn");
            log::warning("Python was busy, so memory that PyTorch holds unused, if any, is kept too");
            return {};
        }
        if (goes_on && now < deadline) continue;
        begun_ = work;
        if (!goes_on) return make_error(ErrorCode::cancelled, "the request was withdrawn");
        return make_error(ErrorCode::timed_out,
                          "PyTorch was giving back its unused memory, and did not finish in time");
    }
    return {};
}

} // namespace gpu_sleep::agent::torch
