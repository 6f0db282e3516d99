// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting threads that take no signals but their own, and are not cancelled.

#include "base/quiet_thread.hpp"

#include "base/fd.hpp"

#include <csignal>
#include <pthread.h>
#include <system_error>

namespace gpu_sleep {
namespace {

/// What a thread brings about itself. Blocked, it ends the process though the program has a handler for it,
/// as runtimes have whose code may run on a thread of ours. Source: sigprocmask(2), NOTES.
constexpr int k_synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

/// For good on the calling thread: a callback's thread is known to the program, which may cancel it, and
/// unwinding our frames would end the process. Source: pthread_setcancelstate(3).
void refuse_cancellation() noexcept {
    int before = 0;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
}

} // namespace

SignalsBlocked::SignalsBlocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int signal : k_synchronous) sigdelset(&blocked, signal);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
}

Result<std::thread> start_quiet_thread(const char* name, std::function<void()> body) {
    const SignalsBlocked blocked; // a thread inherits the mask it is started under
    try {
        std::thread thread([body = std::move(body)] {
            refuse_cancellation();
            body();
        });
        const StandardNumbers filled; // another thread's name is a file that the C library opens
        pthread_setname_np(thread.native_handle(), name);
        return thread;
    } catch (const std::system_error& failure) {
        return make_error(ErrorCode::out_of_threads, "cannot start a thread: {}", failure.what());
    }
}

} // namespace gpu_sleep
