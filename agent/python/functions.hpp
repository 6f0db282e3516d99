// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Part of Python's interface, declared here so that no Python is needed to build.

#pragma once

namespace gpu_sleep::python {

struct Functions {
    int (*is_initialized)();
    int (*holds_lock)();              // PyGILState_Check
    void* (*current_thread)();        // PyThreadState_GetUnchecked
    void* (*this_thread)();           // PyGILState_GetThisThreadState
    const unsigned long* hex_version; // Py_Version, since 3.11
    void* (*save_thread)();           // PyEval_SaveThread
    void (*restore_thread)(void*);
    int (*ensure)(); // PyGILState_Ensure
    void (*release)(int);
    void* (*get_module_dict)();            // borrowed
    void* (*dict_get)(void*, const char*); // borrowed
    void* (*call_method)(void*, const char*, const char*, ...);
    void (*decrement)(void*);
    void (*clear_error)();

    [[nodiscard]] bool is_complete() const noexcept {
        return is_initialized && holds_lock && save_thread && restore_thread;
    }
    /// Whether the calling thread holds the lock. PyGILState_Check alone does not know once there has been a
    /// second interpreter: then it always says yes. Source: Python/pystate.c.
    [[nodiscard]] bool is_locked_here() const noexcept {
        constexpr unsigned long k_3_12 = 0x030c0000; // the current thread is the caller, no longer any thread
        if (!is_initialized() || !holds_lock()) return false;
        if (!current_thread) return true;
        const auto* const current = current_thread();
        if (!current) return false;
        if (hex_version && *hex_version >= k_3_12) return true;
        return this_thread && current == this_thread();
    }
};

/// Python's, as python_lock.hpp's find_python() found them; null before.
[[nodiscard]] const Functions* functions() noexcept;

} // namespace gpu_sleep::python
