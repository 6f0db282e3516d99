// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Part of Python's interface, declared here so that no Python is needed to build.

#pragma once

#include "base/symbols.hpp"

namespace gpu_sleep::python {

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

/// Python's, as python_lock.hpp's find_python() found them; null before.
[[nodiscard]] const Functions* functions() noexcept;

} // namespace gpu_sleep::python
