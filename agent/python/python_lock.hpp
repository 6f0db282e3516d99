// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving up Python's lock while a thread waits, so that the program's other Python threads (a server's health
// checks) go on.

#pragma once

#include "python/loader_lock.hpp"

#include <cstdint>

namespace gpu_sleep::python {

/// Gives up Python's global lock if the calling thread holds it, and takes it again when destroyed. Does
/// nothing in a program without Python, nor as long as the loader's lock may be the thread's too: whoever got
/// Python's might need that one and wait for it for ever. Source: Python/C API, PyEval_SaveThread.
class PythonUnlocked {
public:
    explicit PythonUnlocked(LoaderLock& loader_lock) noexcept;
    ~PythonUnlocked();
    PythonUnlocked(const PythonUnlocked&) = delete;
    PythonUnlocked& operator=(const PythonUnlocked&) = delete;

    /// Whether the lock is still held, and to be given up when that is safe.
    [[nodiscard]] bool is_due() const noexcept { return question_ != 0 && !thread_state_; }
    /// Does so if it is by now. Waits a moment to know.
    void give_up_if_safe() noexcept;

private:
    LoaderLock& loader_lock_;
    std::uint64_t question_ = 0; ///< asked of it; 0 when the thread does not hold Python's lock
    void* thread_state_ = nullptr;
};

/// Looks for Python's functions, beforehand, and watches the loader's lock if it finds them: while a thread
/// waits none that it waits for may need that lock.
void find_python(LoaderLock& loader_lock) noexcept;

} // namespace gpu_sleep::python
