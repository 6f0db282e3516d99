// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Python, found in the process at run time.

#include "python/python_lock.hpp"

#include "common/park.h"
#include "python/functions.hpp"

#include <dlfcn.h>

#include <atomic>

namespace gpu_sleep::python {
namespace {

std::atomic<const Functions*> g_python{nullptr};

} // namespace

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

} // namespace gpu_sleep::python
