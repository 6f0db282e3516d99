// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Python, found in the process at run time.

#include "python/python_lock.hpp"

#include "base/symbols.hpp"
#include "common/park.h"
#include "python/functions.hpp"

#include <dlfcn.h>

#include <atomic>

namespace gpu_sleep::python {
namespace {

std::atomic<const Functions*> g_python{nullptr};

template <class Function>
void look_up(Function& function, const char* name) noexcept {
    function = reinterpret_cast<Function>(find_symbol(RTLD_DEFAULT, name));
}

} // namespace

const Functions* functions() noexcept {
    return g_python.load(std::memory_order_acquire);
}

void find_python(LoaderLock& loader_lock) noexcept {
    if (g_python.load(std::memory_order_acquire))
        return loader_lock.watch(); // a child of fork() has to again
    static Functions python;
    look_up(python.is_initialized, "Py_IsInitialized");
    look_up(python.holds_lock, "PyGILState_Check");
    look_up(python.current_thread, "PyThreadState_GetUnchecked");
    if (!python.current_thread) look_up(python.current_thread, "_PyThreadState_UncheckedGet"); // before 3.13
    look_up(python.this_thread, "PyGILState_GetThisThreadState");
    look_up(python.hex_version, "Py_Version");
    look_up(python.save_thread, "PyEval_SaveThread");
    look_up(python.restore_thread, "PyEval_RestoreThread");
    look_up(python.ensure, "PyGILState_Ensure");
    look_up(python.release, "PyGILState_Release");
    look_up(python.get_module_dict, "PyImport_GetModuleDict");
    look_up(python.dict_get, "PyDict_GetItemString");
    look_up(python.call_method, "PyObject_CallMethod");
    look_up(python.decrement, "Py_DecRef");
    look_up(python.clear_error, "PyErr_Clear");
    if (!python.is_complete()) return;
    loader_lock.watch();
    g_python.store(&python, std::memory_order_release);
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
