// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fault handler.

#include "support/simulated_driver/guarded.hpp"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <mutex>

namespace gpu_sleep::sim {
namespace {

// Where the calling thread goes on after a fault; null outside guarded code. In static TLS: the first use may
// be inside a signal handler, where nothing may be allocated.
thread_local sigjmp_buf* fault_target __attribute__((tls_model("initial-exec"))) = nullptr;

std::mutex handlers_mutex; // guards changing the handlers and what follows; read in a handler only after that
struct sigaction previous_segv;
struct sigaction previous_bus;
std::atomic<bool> passed_on{false};

void handle_fault(int signal, siginfo_t* info, void* context) {
    if (fault_target) abandon_guarded();
    const auto& previous = signal == SIGBUS ? previous_bus : previous_segv;
    if (passed_on.exchange(true)) {
        // The program's handler has had it, and raised it again: to us, whom it took for the one before.
        ::signal(signal, SIG_DFL);
        ::raise(signal);
    } else if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signal, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signal);
    } else {
        // Returning runs the faulting instruction again, now with the default action.
        ::signal(signal, SIG_DFL);
    }
}

void install_handler(int signal, struct sigaction& previous) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == handle_fault) return;
    previous = current;
    struct sigaction ours {};
    ours.sa_sigaction = handle_fault;
    // SA_NODEFER: the handler is left by a jump that restores no signal mask.
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    ::sigaction(signal, &ours, nullptr);
}

/// Every time, because programs (test frameworks among them) set handlers of their own.
void install_handlers() {
    const std::lock_guard lock(handlers_mutex);
    install_handler(SIGSEGV, previous_segv);
    install_handler(SIGBUS, previous_bus);
}

} // namespace

bool run_guarded(void (*body)(void*), void* argument) {
    install_handlers();
    sigjmp_buf target;
    if (sigsetjmp(target, 0) != 0) {
        fault_target = nullptr;
        return false;
    }
    fault_target = &target;
    body(argument);
    fault_target = nullptr;
    return true;
}

void abandon_guarded() {
    siglongjmp(*fault_target, 1);
}

} // namespace gpu_sleep::sim
