// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Taking the loader's lock on a thread that nobody waits for.

#include "python/loader_lock.hpp"

#include "base/guard.hpp"
#include "base/threads.hpp"

#include <dlfcn.h>

namespace gpu_sleep::python {

void LoaderLock::watch() noexcept {
    ignoring_errors([this] {
        const MutexLock lock(mutex_);
        if (is_watched_) return;
        auto thread = start_quiet_thread("gpu-sleep-load", [this] { answer_for_ever(); });
        if (!thread) return;
        thread->detach();
        is_watched_ = true;
    });
}

std::uint64_t LoaderLock::ask() noexcept {
    const MutexLock lock(mutex_);
    asked_.notify_one();
    return ++last_question_;
}

bool LoaderLock::was_free(std::uint64_t question, Milliseconds moment) noexcept {
    MutexLock lock(mutex_);
    return answered_.wait_for(mutex_, moment,
                              [&]() GPU_SLEEP_REQUIRES(mutex_) { return last_answer_ >= question; });
}

void LoaderLock::answer_for_ever() {
    MutexLock lock(mutex_);
    for (;;) {
        asked_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return last_answer_ != last_question_; });
        const auto question = last_question_;
        lock.unlock();
        // Opens nothing, but not without the lock. Source: dlopen(3).
        if (auto* const program = ::dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD)) ::dlclose(program);
        lock.lock();
        last_answer_ = question;
        answered_.notify_all();
    }
}

} // namespace gpu_sleep::python
