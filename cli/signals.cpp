// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Signals as a descriptor.

#include "cli/signals.hpp"

#include "base/threads.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace gpu_sleep::cli {
namespace {

/// Of the signals that ask to end, those that would. Blocked ones that are ignored could be taken, too.
sigset_t wanted_signals() noexcept {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction now {};
        if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
            ::sigaddset(&wanted, number);
    }
    return wanted;
}

UniqueFd open_signals() noexcept {
    const auto wanted = wanted_signals();
    return UniqueFd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
}

} // namespace

Signals::Signals() noexcept : Interruptions(open_signals()) {
    const auto wanted = wanted_signals();
    if (fd() >= 0) ::sigprocmask(SIG_BLOCK, &wanted, nullptr);
}

Signals::~Signals() {
    restore();
}

void Signals::restore() noexcept {
    const auto wanted = wanted_signals();
    if (fd() >= 0) ::sigprocmask(SIG_UNBLOCK, &wanted, nullptr);
}

bool Signals::has_come() noexcept {
    signalfd_siginfo taken{};
    const bool is_taken = ::read(fd(), &taken, sizeof(taken)) == sizeof(taken);
    if (is_taken && first_ == 0) first_ = static_cast<int>(taken.ssi_signo);
    return first_ != 0;
}

void Signals::end_by_first() noexcept {
    if (first_ == 0) return;
    restore();
    ::raise(first_);
}

int end_beside_driver(int status) noexcept {
    if (BackgroundCall::is_any_under_way()) ::_exit(status); // all is written: nothing is buffered
    return status;
}

} // namespace gpu_sleep::cli
