// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process that others checkpoint: another run of this program, which obeys letter by letter and answers
// each.

#pragma once

#include "rules.hpp"

#include "support/other_run.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace gpu_sleep::driver_rules {

/// What the other process is told to do. What a driver call makes is made before, so that each is one call
/// alone.
enum class Order : char {
    check_contents =
        'c',         ///< "y" if all memory, and what a graph that was made before does, is as it should be
    read_host = 'h', ///< "y" if its page-locked memory is as it should be; no driver call
    ask = 'q',       ///< whether work is done, and how much memory is free
    managed = 'm',   ///< takes managed memory
    ask_state = 'a', ///< "y" if it is checkpointed, as it finds itself
    restore_itself = 'r', ///< and unlocks itself
    spin = 'b',           ///< work that runs until let_go
    let_go = 'g',         ///< no driver call
    exit_now = 'x',       ///< std::exit(0)
};

/// The simulated driver's processes know of each other by a file, which is named before the first driver
/// call. A real driver needs none.
inline void share_devices() {
    static char name[] = "/tmp/gpu-sleep-rules-XXXXXX";
    static const int file = ::mkstemp(name);
    REQUIRE(file >= 0);
    ::setenv("GPU_SLEEP_SIM_STATE", name, 1);
    std::atexit([] { ::unlink(name); });
}

class Target {
public:
    static constexpr std::size_t k_bytes = std::size_t{256} << 20; ///< of each of its two allocations

    Target() {
        share_devices();
        int ends[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
        REQUIRE(::fcntl(ends[1], F_SETFD, 0) == 0);
        orders_ = ends[0];
        process_ = std::make_unique<Process>("child: obeys",
                                             std::vector{"SIM_TEST_ORDERS_FD=" + std::to_string(ends[1])});
        ::close(ends[1]);
        REQUIRE(process_->wait_until_ready());
    }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;
    ~Target() { ::close(orders_); }

    [[nodiscard]] int pid() const { return process_->pid(); }
    [[nodiscard]] Process& process() { return *process_; }

    void tell(Order order) const { REQUIRE(::write(orders_, &order, 1) == 1); }
    /// Its answer to the oldest order; '-' if none comes in that time.
    [[nodiscard]] char answer(int timeout_ms = 20'000) const {
        pollfd wanted{orders_, POLLIN, 0};
        char byte = '-';
        if (::poll(&wanted, 1, timeout_ms) == 1 && ::read(orders_, &byte, 1) != 1) byte = '!';
        return byte;
    }
    [[nodiscard]] char ask(Order order) const {
        tell(order);
        return answer();
    }

    [[nodiscard]] CUresult lock(unsigned timeout_ms = 10'000) const {
        CUcheckpointLockArgs args{};
        args.timeoutMs = timeout_ms;
        return cuCheckpointProcessLock(pid(), &args);
    }
    [[nodiscard]] CUresult checkpoint() const { return cuCheckpointProcessCheckpoint(pid(), nullptr); }
    [[nodiscard]] CUresult restore() const { return cuCheckpointProcessRestore(pid(), nullptr); }
    [[nodiscard]] CUresult unlock() const { return cuCheckpointProcessUnlock(pid(), nullptr); }
    /// -1 if it cannot be asked.
    [[nodiscard]] int state() const {
        CUprocessState state{};
        return cuCheckpointProcessGetState(pid(), &state) == CUDA_SUCCESS ? static_cast<int>(state) : -1;
    }

private:
    int orders_ = -1;
    std::unique_ptr<Process> process_;
};

} // namespace gpu_sleep::driver_rules
