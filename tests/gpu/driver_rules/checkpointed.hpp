// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process that others checkpoint: another run of this program, which obeys letter by letter and answers
// each.

#pragma once

#include "rules.hpp"

#include "support/other_run.hpp"

namespace gpu_sleep::driver_rules {

/// What the other process is told to do. What a driver call makes is made before, so that each is one call
/// alone.
enum class Order : char {
    check_contents =
        'c',         ///< "y" if all memory, and what a graph that was made before does, is as it should be
    read_host = 'h', ///< "y" if its page-locked memory is as it should be; no driver call
    hide_host = 'x', ///< puts that out of its own reach, but for its ends; no driver call
    ask = 'q',       ///< whether work is done, and how much memory is free
    managed = 'm',   ///< takes managed memory
    ask_state = 'a', ///< "y" if it is checkpointed, as it finds itself
    restore_itself = 'r', ///< and unlocks itself
    spin = 'b',           ///< work that runs until let_go
    let_go = 'g',         ///< no driver call
    fail = 'f', ///< an assertion: "a" if it is reported as that, "i" if as an illegal instruction; "s" on the
                ///< simulated driver, which has none
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
        process_.emplace("child: obeys", std::vector<std::string>{});
        REQUIRE(process_->is_ready());
    }

    [[nodiscard]] int pid() const { return process_->pid(); }
    [[nodiscard]] OtherRun& process() { return *process_; }

    void tell(Order order) const { process_->send(std::string(1, static_cast<char>(order))); }
    /// Its answer to the oldest order; '-' if none comes in that time.
    [[nodiscard]] char answer(Milliseconds limit = test::k_patience) {
        return process_->has_output_within(limit) ? process_->read_line().at(0) : '-';
    }
    [[nodiscard]] char ask(Order order) {
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
    std::optional<OtherRun> process_; ///< made once the devices are shared
};

} // namespace gpu_sleep::driver_rules
