// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting threads that take no signals.

#include "base/quiet_thread.hpp"

#include <csignal>
#include <pthread.h>
#include <system_error>

namespace gpu_sleep {

Result<std::thread> start_quiet_thread(const char* name, std::function<void()> body) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // a thread inherits the mask it is started under
    Result<std::thread> result = make_error(ErrorCode::internal, "cannot start a thread");
    try {
        result = std::thread(std::move(body));
        pthread_setname_np(result->native_handle(), name);
    } catch (const std::system_error& failure) {
        result = make_error(ErrorCode::internal, "cannot start a thread: {}", failure.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return result;
}

} // namespace gpu_sleep
