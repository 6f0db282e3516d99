// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Does for the agent of process PID what that cannot do itself:
//
//   gpu-sleep-outside look PID
//     says for each line that it is given what is free: for each GPU a line with its UUID, all of its memory,
//     what is free of that, and what PID has of it (0 where NVML does not know), in bytes; then "end".
//     Or it says why not, and ends.
//   gpu-sleep-outside checkpoint PID MILLISECONDS
//     waits for a line, has the driver lock PID within that time and says "locked", has it checkpointed and
//     says "end"; or says why not, and leaves it running.

#include "checkpoint/steps.hpp"
#include "driver/checkpoint.hpp"
#include "driver/management.hpp"
#include "outside/outside.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

using namespace gpu_sleep;

namespace {

bool say(std::string_view line) {
    fmt::print("{}\n", line);
    return std::fflush(stdout) == 0;
}

int look(pid_t pid) {
    constexpr unsigned k_patience = agent::outside::k_longest_look / std::chrono::seconds(1);
    // A child of the program may hold the other end of the socket, too.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (::alarm(0), std::getchar() == '\n') {
        ::alarm(k_patience);
        const auto gpus = driver::look_at_gpus();
        if (!gpus) return say(gpus.error().message), EXIT_FAILURE;
        for (const auto& gpu : *gpus) {
            Bytes used = 0;
            for (const auto& process : gpu.processes)
                if (process.pid == pid) used = process.bytes.value_or(0);
            say(fmt::format("{} {} {} {}", gpu.uuid, gpu.total, gpu.free, used));
        }
        if (!say("end")) return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

/// Ends without a lock where nobody is there to hear of it.
int take(pid_t pid, Milliseconds timeout) {
    const auto loaded = driver::Checkpoint::load();
    if (std::getchar() != '\n') return EXIT_FAILURE;
    if (!loaded) return say("the driver did not lock it: " + loaded.error().message), EXIT_FAILURE;
    const checkpoint::Steps engine(*loaded, pid, checkpoint::Kept::by_agent);
    auto done = engine.lock(timeout);
    if (done) {
        say("locked");
        done = engine.checkpoint();
    }
    const bool heard = say(done ? "end" : done.error().message);
    return heard && done ? EXIT_SUCCESS : EXIT_FAILURE;
}

} // namespace

int main(int argc, char** argv) {
    ::prctl(PR_SET_NAME, "gpu-sleep-outside"); // of a descriptor's number, where the kernel is before 6.14
    // The agent that starts it blocks all signals. What a terminal sends to its program is not meant for
    // this.
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::setsid();
    const auto number = [&](int place) { return argc > place ? std::strtol(argv[place], nullptr, 10) : 0; };
    const std::string_view task = argc > 1 ? argv[1] : "";
    const auto pid = static_cast<pid_t>(number(2));
    if (task == "look") return look(pid);
    if (task == "checkpoint") return take(pid, Milliseconds(number(3)));
    return EXIT_FAILURE;
}
