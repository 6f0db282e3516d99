// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuCheckpointProcess*: other processes, which the shared state tells of. Contents lie in host memory all the
// time; what a checkpoint takes and a restore needs is their share of the devices.

#include "support/simulated_driver/checkpoint_gate.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/entry.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>

namespace gpu_sleep::sim {
namespace {

constexpr std::chrono::milliseconds k_look_again{1};

thread_local int calls_under_way = 0;

SharedProcess& own() noexcept {
    return SharedState::instance().own();
}

/// Whoever began a lock and died before it was locked holds nothing any more.
void forget_dead_holder(SharedProcess& process) {
    auto holder = process.held_by.load();
    if (holder == 0 || process.state != CU_PROCESS_STATE_RUNNING) return;
    if (::kill(holder, 0) != 0 && errno == ESRCH) process.held_by.compare_exchange_strong(holder, 0);
}

template <class Args>
bool has_reserved(const Args& args, std::size_t from) {
    const std::span bytes(reinterpret_cast<const unsigned char*>(&args), sizeof args);
    const auto reserved = bytes.subspan(from);
    return std::any_of(reserved.begin(), reserved.end(), [](auto byte) { return byte != 0; });
}

/// Runs `body` for a process that is in `state`: CUresult(SharedProcess&).
template <class Body>
CUresult about(Entry entry, int pid, CUprocessState state, Body&& body) {
    return call(entry, [&](Call&) -> CUresult {
        auto* const process = SharedState::instance().find(pid);
        if (!process) return CUDA_ERROR_INVALID_VALUE;
        forget_dead_holder(*process);
        if (process->state != state) return CUDA_ERROR_ILLEGAL_STATE;
        return body(*process);
    });
}

/// Waits until the process's calls and work are done. NOT_READY at the deadline, if there is one.
CUresult wait_until_quiet(SharedProcess& process, unsigned timeout_ms) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
    // In this order: a call counts its work before it is over.
    while (process.calls != 0 || process.work != 0) {
        if (!SharedState::instance().is_alive(process)) return CUDA_ERROR_INVALID_VALUE;
        if (timeout_ms != 0 && Clock::now() >= deadline) return CUDA_ERROR_NOT_READY;
        std::this_thread::sleep_for(k_look_again);
    }
    return CUDA_SUCCESS;
}

} // namespace

CallUnderWay::CallUnderWay() noexcept {
    if (calls_under_way++ > 0) return;
    auto& process = own();
    for (++process.calls; process.held_by != 0; ++process.calls) {
        --process.calls;
        while (process.held_by != 0) {
            forget_dead_holder(process);
            std::this_thread::sleep_for(k_look_again);
        }
    }
}

CallUnderWay::~CallUnderWay() {
    if (--calls_under_way == 0) --own().calls;
}

void note_work_submitted() noexcept {
    ++own().work;
}

void note_work_done() noexcept {
    --own().work;
}

} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState* state) {
    return call(Entry::cuCheckpointProcessGetState, [&](Call&) {
        auto* const process = SharedState::instance().find(pid);
        if (!process || !state) return CUDA_ERROR_INVALID_VALUE;
        *state = static_cast<CUprocessState>(process->state.load());
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int* thread) {
    return call(Entry::cuCheckpointProcessGetRestoreThreadId, [&](Call&) {
        if (!thread || !SharedState::instance().find(pid)) return CUDA_ERROR_INVALID_VALUE;
        *thread = pid; // there is no thread for it
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
    return about(Entry::cuCheckpointProcessLock, pid, CU_PROCESS_STATE_RUNNING, [&](SharedProcess& process) {
        if (args && has_reserved(*args, sizeof args->timeoutMs)) return CUDA_ERROR_INVALID_VALUE;
        pid_t nobody = 0;
        if (!process.held_by.compare_exchange_strong(nobody, ::getpid())) return CUDA_ERROR_ILLEGAL_STATE;
        const auto status = wait_until_quiet(process, args ? args->timeoutMs : 0);
        if (status == CUDA_SUCCESS)
            process.state = CU_PROCESS_STATE_LOCKED;
        else
            process.held_by = 0;
        return status;
    });
}

CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
    return about(Entry::cuCheckpointProcessCheckpoint, pid, CU_PROCESS_STATE_LOCKED,
                 [&](SharedProcess& process) {
                     if (args && has_reserved(*args, 0)) return CUDA_ERROR_INVALID_VALUE;
                     DeviceBudget::instance().put_away(process);
                     process.state = CU_PROCESS_STATE_CHECKPOINTED;
                     return CUDA_SUCCESS;
                 });
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
    return about(Entry::cuCheckpointProcessRestore, pid, CU_PROCESS_STATE_CHECKPOINTED,
                 [&](SharedProcess& process) {
                     // Contents cannot go to another device here.
                     if (args && args->gpuPairsCount != 0) return CUDA_ERROR_NOT_SUPPORTED;
                     if (!DeviceBudget::instance().bring_back(process)) {
                         process.state = CU_PROCESS_STATE_FAILED;
                         return CUDA_ERROR_OUT_OF_MEMORY;
                     }
                     process.state = CU_PROCESS_STATE_LOCKED;
                     return CUDA_SUCCESS;
                 });
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
    return about(Entry::cuCheckpointProcessUnlock, pid, CU_PROCESS_STATE_LOCKED, [&](SharedProcess& process) {
        if (args && has_reserved(*args, 0)) return CUDA_ERROR_INVALID_VALUE;
        process.state = CU_PROCESS_STATE_RUNNING;
        process.held_by = 0;
        return CUDA_SUCCESS;
    });
}
