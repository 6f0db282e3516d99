// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Python, found in the process at run time, and a thread that takes the loader's lock, for which nobody
// waits.

#include "interpreter_lock/python_lock.hpp"

#include "base/guard.hpp"
#include "base/threads.hpp"
#include "common/park.h"

#include <dlfcn.h>

#include <atomic>

namespace gpu_sleep::interpreter_lock {

namespace {

std::atomic<const Functions*> g_python{nullptr};

} // namespace

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

const Functions* functions() noexcept {
    return g_python.load(std::memory_order_acquire);
}

void find_python(LoaderLock& loader_lock) noexcept {
    if (g_python.load(std::memory_order_acquire))
        return loader_lock.watch(); // a child of fork() has to again
    const Functions found(RTLD_DEFAULT);
    if (!found.is_complete()) return;
    static const auto s_python = found;
    loader_lock.watch();
    g_python.store(&s_python, std::memory_order_release);
}

PythonUnlocked::PythonUnlocked(LoaderLock& loader_lock) noexcept : loader_lock_(loader_lock) {
    const auto* python = functions();
    if (!python || !python->is_locked_here()) return;
    question_ = loader_lock_.ask();
    give_up_if_safe();
}

void PythonUnlocked::give_up_if_safe() noexcept {
    constexpr Milliseconds k_moment{10}; // far more than an answer takes where the lock is free
    if (loader_lock_.was_free(question_, k_moment)) thread_state_ = functions()->save_thread();
}

PythonUnlocked::~PythonUnlocked() {
    if (!thread_state_) return;
    const auto take_again = [](void* state) { functions()->restore_thread(state); };
    gpu_sleep_call_or_park(take_again, thread_state_, nullptr);
}

} // namespace gpu_sleep::interpreter_lock
