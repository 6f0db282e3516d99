// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Python, found in the process at run time.

#include "gate/python_lock.hpp"

#include "base/symbols.hpp"
#include "gate/gate.hpp"
#include "gate/stay.h"

#include <dlfcn.h>

#include <atomic>

namespace gpu_sleep::gate {
namespace {

// Part of Python's interface, declared here so that no Python is needed to build.
struct Python {
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

std::atomic<const Python*> g_python{nullptr};

template <class Function>
void look_up(Function& function, const char* name) noexcept {
    function = reinterpret_cast<Function>(find_symbol(RTLD_DEFAULT, name));
}

} // namespace

void find_python() noexcept {
    auto& loader_lock = Gate::instance().loader_lock();
    if (g_python.load(std::memory_order_acquire))
        return loader_lock.watch(); // a child of fork() has to again
    static Python python;
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
    const auto* python = g_python.load(std::memory_order_acquire);
    if (!python || !python->is_locked_here()) return;
    question_ = loader_lock_.ask();
    give_up_if_safe();
}

void PythonUnlocked::give_up_if_safe() noexcept {
    constexpr Milliseconds k_moment{10}; // far more than an answer takes where the lock is free
    if (loader_lock_.was_free(question_, k_moment))
        thread_state_ = g_python.load(std::memory_order_acquire)->save_thread();
}

PythonUnlocked::~PythonUnlocked() {
    if (!thread_state_) return;
    const auto take_again = [](void* state) {
        g_python.load(std::memory_order_acquire)->restore_thread(state);
    };
    gpu_sleep_call_and_stay(take_again, thread_state_, nullptr);
}

namespace {

void call_empty_cache(const Python& python, CacheRequest& request, bool (*prepare)()) {
    auto* const modules = python.get_module_dict();
    auto* const torch = modules ? python.dict_get(modules, "torch.cuda") : nullptr;
    if (!torch || !prepare() || !request.begin()) return; // given up: by now memory may sleep
    auto* const done = python.call_method(torch, "empty_cache", nullptr);
    if (done)
        python.decrement(done);
    else
        python.clear_error();
}

} // namespace

void empty_torch_cache(CacheRequest& request, bool (*prepare)()) noexcept {
    const auto* python = g_python.load(std::memory_order_acquire);
    if (!python || !python->ensure || !python->release || !python->get_module_dict || !python->dict_get ||
        !python->call_method || !python->decrement || !python->clear_error || !python->is_initialized())
        return;
    struct Call {
        const Python& python;
        CacheRequest& request;
        bool (*prepare)();
    };
    const auto with_lock = [](void* argument) {
        const auto& call = *static_cast<const Call*>(argument);
        const int state = call.python.ensure();
        call_empty_cache(call.python, call.request, call.prepare);
        call.python.release(state);
    };
    const Exemption exempt;
    Call call{*python, request, prepare};
    gpu_sleep_call_and_stay(with_lock, &call, nullptr);
}

} // namespace gpu_sleep::gate
