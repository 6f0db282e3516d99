// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Says what is free on the GPUs, for an agent whose own process the driver has checkpointed: for each GPU a
// line with its UUID, all of its memory and what is free of that, in bytes; then "end".

#include "driver/management.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

int main() {
    // The agent that starts it blocks all signals, and waits no longer than this.
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    constexpr unsigned k_patience = 10; // seconds
    ::alarm(k_patience);
    const auto gpus = gpu_sleep::driver::look_at_gpus();
    if (!gpus) return 1;
    for (const auto& gpu : *gpus) fmt::print("{} {} {}\n", gpu.uuid, gpu.total, gpu.free);
    fmt::print("end\n");
    return std::fflush(stdout) == 0 ? 0 : 1;
}
