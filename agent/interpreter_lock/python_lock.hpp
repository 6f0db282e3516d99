// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving up Python's lock while a thread waits, so that the program's other Python threads (a server's health
// checks) go on; and the loader's lock, which decides whether the thread may.

#pragma once

#include "base/symbols.hpp"
#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"

#include <cstdint>

namespace gpu_sleep::interpreter_lock {

/// Part of Python's interface, declared here so that no Python is needed to build.
struct Functions : SymbolTable {
    using SymbolTable::SymbolTable;

    int (*is_initialized)() = needed("Py_IsInitialized");
    int (*holds_lock)() = needed("PyGILState_Check");
    void* (*current_thread)() = optional("PyThreadState_GetUnchecked");
    void* (*current_thread_before_3_13)() = optional("_PyThreadState_UncheckedGet");
    void* (*this_thread)() = optional("PyGILState_GetThisThreadState");
    const unsigned long* hex_version = optional("Py_Version"); ///< since 3.11
    void* (*save_thread)() = needed("PyEval_SaveThread");
    void (*restore_thread)(void*) = needed("PyEval_RestoreThread");
    int (*ensure)() = optional("PyGILState_Ensure");
    void (*release)(int) = optional("PyGILState_Release");
    void* (*get_module_dict)() = optional("PyImport_GetModuleDict");          ///< borrowed
    void* (*dict_get)(void*, const char*) = optional("PyDict_GetItemString"); ///< borrowed
    void* (*call_method)(void*, const char*, const char*, ...) = optional("PyObject_CallMethod");
    void (*decrement)(void*) = optional("Py_DecRef");
    void (*clear_error)() = optional("PyErr_Clear");

    /// Whether the calling thread holds the lock. PyGILState_Check alone does not know once there has been a
    /// second interpreter: then it always says yes. Source: Python/pystate.c.
    [[nodiscard]] bool is_locked_here() const noexcept {
        constexpr unsigned long k_3_12 = 0x030c0000; // the current thread is the caller, no longer any thread
        if (!is_initialized() || !holds_lock()) return false;
        const auto ask = current_thread ? current_thread : current_thread_before_3_13;
        if (!ask) return true;
        const auto* const current = ask();
        if (!current) return false;
        if (hex_version && *hex_version >= k_3_12) return true;
        return this_thread && current == this_thread();
    }
};

/// Python's, as find_python() found them; null before.
[[nodiscard]] const Functions* functions() noexcept;

/// Whether a thread that waits may hold the loader's lock, as those do that run a library's constructor. A
/// thread of its own takes the lock when asked to: once it has had it, nobody who has waited since the
/// question holds it. Nobody else need wait for the lock to know. Thread-safe. Never destroyed once it is
/// watched.
class LoaderLock {
public:
    /// Starts the thread, unless it runs: beforehand, for that may take the lock. Where there is no thread to
    /// be had nothing is ever known.
    void watch() noexcept;
    /// Asks. Returns the question's number, which is never 0.
    [[nodiscard]] std::uint64_t ask() noexcept {
        const MutexLock lock(mutex_);
        asked_.notify_one();
        return ++last_question_;
    }
    /// Whether the lock was free at some time since the question, as is known after `moment` at most.
    [[nodiscard]] bool was_free(std::uint64_t question, Milliseconds moment) noexcept {
        MutexLock lock(mutex_);
        return answered_.wait_for(mutex_, moment,
                                  [&]() GPU_SLEEP_REQUIRES(mutex_) { return last_answer_ >= question; });
    }

private:
    [[noreturn]] void answer_for_ever();

    Mutex mutex_
        GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost); ///< the loader's lock is not taken under it
    Condition asked_, answered_;
    std::uint64_t last_question_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::uint64_t last_answer_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    bool is_watched_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
};

/// Gives up Python's global lock if the calling thread holds it, and takes it again when destroyed. Does
/// nothing in a program without Python, nor as long as the loader's lock may be the thread's too: whoever got
/// Python's might need that one and wait for it for ever. Source: Python/C API, PyEval_SaveThread.
class PythonUnlocked {
public:
    explicit PythonUnlocked(LoaderLock& loader_lock) noexcept;
    ~PythonUnlocked();
    PythonUnlocked& operator=(PythonUnlocked&&) = delete;

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

} // namespace gpu_sleep::interpreter_lock
