// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Says what is free on the GPUs, for an agent whose own process the driver has checkpointed: for each GPU a
// line with its UUID, all of its memory, what is free of that, and what process PID has of it (0 where NVML
// does not know), in bytes; then "end".
//
// Usage: gpu-sleep-look PID

#include "driver/management.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
    const auto pid = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 0;
    // The agent that starts it blocks all signals, and waits no longer than this.
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    constexpr unsigned k_patience = 10; // seconds
    ::alarm(k_patience);
    const auto gpus = gpu_sleep::driver::look_at_gpus();
    if (!gpus) return 1;
    for (const auto& gpu : *gpus) {
        gpu_sleep::Bytes used = 0;
        for (const auto& process : gpu.processes)
            if (process.pid == pid) used = process.bytes.value_or(0);
        fmt::print("{} {} {} {}\n", gpu.uuid, gpu.total, gpu.free, used);
    }
    fmt::print("end\n");
    return std::fflush(stdout) == 0 ? 0 : 1;
}
