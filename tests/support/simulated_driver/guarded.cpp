// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fault handlers. Programs set handlers of their own over ours, and we ours over theirs again, many
// times: each of ours hands on to the one that it was set over, so that a program's handler that puts back,
// or calls, the one before it reaches that one and not itself.

#include "support/simulated_driver/guarded.hpp"

#include <array>
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <mutex>
#include <utility>

namespace gpu_sleep::sim {
namespace {

constexpr std::size_t k_layers = 16;

using Handler = void (*)(int, siginfo_t*, void*);

// Where the calling thread goes on after a fault; null outside guarded code. In static TLS: the first use may
// be inside a signal handler, where nothing may be allocated.
thread_local sigjmp_buf* fault_target __attribute__((tls_model("initial-exec"))) = nullptr;

/// What was there before each of our handlers was set, of one signal. A handler reads its own alone, which
/// was written before it was set.
struct Layers {
    std::array<struct sigaction, k_layers> previous{};
    std::size_t count = 0; ///< guarded by handlers_mutex
};
Layers segv_layers;
Layers bus_layers;
std::mutex handlers_mutex; // guards changing the handlers

Layers& layers_of(int signal) {
    return signal == SIGBUS ? bus_layers : segv_layers;
}

/// What the kernel would have done. Behind a fault the faulting instruction runs again; a signal that was
/// sent comes once.
void act_by_default(int signal, bool is_fault) {
    ::signal(signal, SIG_DFL);
    if (!is_fault) ::raise(signal);
}

void handle(const struct sigaction& previous, int signal, siginfo_t* info, void* context) {
    // Sent by kill(2) and its kin, it is the program's, in whatever thread it arrives.
    const bool is_fault = info->si_code > 0;
    if (is_fault && fault_target) abandon_guarded();
    if ((previous.sa_flags & SA_SIGINFO) != 0)
        previous.sa_sigaction(signal, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(signal);
    else if (is_fault || previous.sa_handler == SIG_DFL)
        act_by_default(signal, is_fault);
}

template <std::size_t Layer>
void handle_in(int signal, siginfo_t* info, void* context) {
    handle(layers_of(signal).previous[Layer], signal, info, context);
}

template <std::size_t... Layer>
constexpr std::array<Handler, k_layers> make_handlers(std::index_sequence<Layer...>) {
    return {handle_in<Layer>...};
}

constexpr auto k_handlers = make_handlers(std::make_index_sequence<k_layers>());

bool is_ours(const struct sigaction& action) {
    for (const auto handler : k_handlers)
        if ((action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handler) return true;
    return false;
}

bool is_same(const struct sigaction& a, const struct sigaction& b) {
    constexpr auto k_kind = static_cast<unsigned>(SA_SIGINFO);
    return ((static_cast<unsigned>(a.sa_flags) ^ static_cast<unsigned>(b.sa_flags)) & k_kind) == 0 &&
           ((a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction : a.sa_handler == b.sa_handler);
}

/// Over a handler that one of ours was set over before, that one is set again.
void install_handler(int signal) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (is_ours(current)) return;
    auto& layers = layers_of(signal);
    std::size_t layer = 0;
    while (layer < layers.count && !is_same(layers.previous[layer], current)) ++layer;
    if (layer == layers.count) {
        if (layer == k_layers) --layer; // so many are more than any test sets
        layers.previous[layer] = current;
        layers.count = layer + 1;
    }
    struct sigaction ours {};
    ours.sa_sigaction = k_handlers[layer];
    // SA_NODEFER: the handler is left by a jump that restores no signal mask.
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    ::sigaction(signal, &ours, nullptr);
}

/// Every time, because programs (test frameworks among them) set handlers of their own.
void install_handlers() {
    const std::lock_guard lock(handlers_mutex);
    install_handler(SIGSEGV);
    install_handler(SIGBUS);
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
