// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuCheckpointProcess*: other processes, which the shared state tells of. Contents lie in host memory all the
// time; what a checkpoint takes and a restore needs is their share of the devices.

#include "support/simulated_driver/checkpoint_gate.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/entry.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace gpu_sleep::sim {
namespace {

constexpr std::chrono::milliseconds k_look_again{1};
constexpr std::streamsize k_longest_line = 1 << 16;

thread_local int calls_under_way = 0;

SharedProcess& own() noexcept {
    return SharedState::instance().own();
}

/// The calls are answered by the other process, so they wait while it is stopped.
void wait_while_stopped(pid_t pid) {
    const auto path = "/proc/" + std::to_string(pid) + "/stat";
    const auto is_stopped = [&] {
        std::ifstream file(path);
        std::string stat; // all of it: a process's name may hold newlines
        std::getline(file, stat, '\0');
        const auto end = stat.rfind(')');
        return end != std::string::npos && end + 2 < stat.size() && stat[end + 2] == 'T';
    };
    while (is_stopped()) std::this_thread::sleep_for(k_look_again);
}

/// Runs `body` for a process that uses the driver, and that this one may ask about: CUresult(SharedProcess&).
template <class Body>
CUresult about(int pid, Body&& body) {
    if (pid <= 0 || ::kill(pid, 0) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    wait_while_stopped(pid);
    auto* const process = SharedState::instance().find(pid);
    return process ? body(*process) : CUDA_ERROR_NOT_INITIALIZED;
}

template <class Args>
bool has_reserved(const Args& args, std::size_t from) {
    const std::span bytes(reinterpret_cast<const unsigned char*>(&args), sizeof args);
    const auto reserved = bytes.subspan(from);
    return std::any_of(reserved.begin(), reserved.end(), [](auto byte) { return byte != 0; });
}

/// The same for one that is in `state`.
template <class Body>
CUresult about(int pid, CUprocessState state, Body&& body) {
    return about(pid, [&](SharedProcess& process) {
        return process.state == state ? body(process) : CUDA_ERROR_ILLEGAL_STATE;
    });
}

/// Waits until the process's calls and work are done. NOT_READY at the deadline, if there is one.
CUresult wait_until_quiet(SharedProcess& process, unsigned timeout_ms) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
    // In this order: a call counts its work before it is over.
    while (process.calls != 0 || process.work != 0) {
        if (!SharedState::instance().is_alive(process)) return CUDA_ERROR_OPERATING_SYSTEM;
        if (timeout_ms != 0 && Clock::now() >= deadline) return CUDA_ERROR_NOT_READY;
        std::this_thread::sleep_for(k_look_again);
    }
    return CUDA_SUCCESS;
}

/// Of the calls that pass on a real driver while their process is locked: those that change nothing.
bool only_asks(Entry entry) noexcept {
    static constexpr std::array k_asking = {Entry::cuCtxSynchronize,
                                            Entry::cuStreamSynchronize,
                                            Entry::cuStreamQuery,
                                            Entry::cuEventQuery,
                                            Entry::cuEventSynchronize,
                                            Entry::cuMemGetInfo,
                                            Entry::cuCtxGetCurrent,
                                            Entry::cuCtxGetDevice,
                                            Entry::cuPointerGetAttribute,
                                            Entry::cuMemGetAddressRange,
                                            Entry::cuDeviceGetCount,
                                            Entry::cuDeviceGetAttribute,
                                            Entry::cuDeviceTotalMem,
                                            Entry::cuDevicePrimaryCtxGetState,
                                            Entry::cuStreamGetCtx,
                                            Entry::cuStreamIsCapturing,
                                            Entry::cuMemGetAllocationGranularity};
    return std::find(k_asking.begin(), k_asking.end(), entry) != k_asking.end();
}

/// Why no restore brings the process back.
CUresult status_of_standing(const SharedProcess& process) noexcept {
    if (process.hidden) return CUDA_ERROR_INVALID_VALUE;
    static constexpr std::array<CUresult, k_standing_kinds> k_statuses = {
        // by Standing
        CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM};
    for (std::size_t kind = 0; kind < k_statuses.size(); ++kind)
        if (process.standing[kind] != 0) return k_statuses[kind];
    return CUDA_SUCCESS;
}

/// Whether the process can neither read nor write some of its registered memory. Source: proc_pid_maps(5).
bool hides_registered(const SharedProcess& process) {
    std::ifstream maps("/proc/" + std::to_string(process.pid) + "/maps");
    std::uint64_t begin = 0, end = 0;
    char dash = 0;
    std::string access;
    for (maps >> std::hex; maps >> begin >> dash >> end >> access; maps.ignore(k_longest_line, '\n'))
        if (access.starts_with("--") && std::ranges::any_of(process.registered, [&](const SharedSpan& span) {
                return span.begin < end && begin < span.end;
            }))
            return true;
    return false;
}

/// Which GPU it is, as the management library numbers them; nothing for another's uuid.
std::optional<int> gpu_of(const CUuuid& wanted) {
    for (int gpu = 0; gpu < Driver::instance().device_count(); ++gpu) {
        const auto uuid = uuid_of(gpu);
        if (std::memcmp(uuid.bytes, wanted.bytes, sizeof uuid.bytes) == 0) return gpu;
    }
    return {};
}

/// The GPUs of the process's devices after a restore by `args`; nothing where its pairs do not list every GPU
/// once on each side.
std::optional<std::array<int, k_max_devices>> gpus_after(const SharedProcess& process,
                                                         const CUcheckpointRestoreArgs* args) {
    std::array<int, k_max_devices> gpus{};
    std::copy(std::begin(process.gpus), std::end(process.gpus), gpus.begin());
    if (!args || args->gpuPairsCount == 0) return gpus;
    const auto count = static_cast<unsigned>(Driver::instance().device_count());
    if (args->gpuPairsCount != count) return {};
    std::array<std::optional<int>, k_max_devices> places;
    std::array<bool, k_max_devices> is_taken{};
    for (const auto& pair : std::span(args->gpuPairs, count)) {
        const auto from = gpu_of(pair.oldUuid);
        const auto to = gpu_of(pair.newUuid);
        if (!from || !to || places[*from] || std::exchange(is_taken[*to], true)) return {};
        places[*from] = *to;
    }
    for (auto& gpu : gpus) gpu = places[gpu].value_or(gpu);
    return gpus;
}

} // namespace

CallUnderWay::CallUnderWay(Entry entry) noexcept {
    if (calls_under_way++ > 0) return;
    auto& process = own();
    const auto is_held = [&] {
        const int state = process.state;
        return state != CU_PROCESS_STATE_RUNNING && !(state == CU_PROCESS_STATE_LOCKED && only_asks(entry));
    };
    for (++process.calls; is_held(); ++process.calls) {
        --process.calls;
        while (is_held()) std::this_thread::sleep_for(k_look_again);
    }
}

CallUnderWay::~CallUnderWay() {
    if (--calls_under_way == 0) --own().calls;
}

bool CallUnderWay::is_first_after_restore() const noexcept {
    auto& restored = own().restored;
    return restored && restored.exchange(false);
}

void note_work_submitted() noexcept {
    ++own().work;
}

void note_work_done() noexcept {
    --own().work;
}

void note_managed(int more) noexcept {
    own().managed += static_cast<unsigned>(more);
}

void note_standing(Standing kind, int more) noexcept {
    own().standing[static_cast<int>(kind)] += static_cast<unsigned>(more);
}

void note_registered(std::uint64_t begin, std::uint64_t bytes) noexcept {
    for (auto& span : own().registered) {
        if (span.end != 0) continue;
        span.begin = begin;
        span.end = begin + bytes;
        return;
    }
}

void note_unregistered(std::uint64_t begin) noexcept {
    for (auto& span : own().registered)
        if (span.begin == begin) span.end = 0;
}

} // namespace gpu_sleep::sim

SIM_ENTRY(apart, 12080) cuCheckpointProcessGetState(Call&, int pid, CUprocessState* state) {
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    return about(pid, [&](SharedProcess& process) {
        *state = static_cast<CUprocessState>(process.state.load());
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(apart, 12080) cuCheckpointProcessGetRestoreThreadId(Call&, int pid, int* thread) {
    if (!thread) return CUDA_ERROR_INVALID_VALUE;
    return about(pid, [&](SharedProcess&) {
        *thread = pid;
        return CUDA_SUCCESS;
    });
}

// It is locked from the beginning on, and stays so if who locks it ends meanwhile.
SIM_ENTRY(apart, 12080) cuCheckpointProcessLock(Call&, int pid, CUcheckpointLockArgs* args) {
    return about(pid, [&](SharedProcess& process) {
        if (args && has_reserved(*args, sizeof args->timeoutMs)) return CUDA_ERROR_INVALID_VALUE;
        int state = CU_PROCESS_STATE_RUNNING;
        if (!process.state.compare_exchange_strong(state, CU_PROCESS_STATE_LOCKED))
            return CUDA_ERROR_ILLEGAL_STATE;
        const auto status = wait_until_quiet(process, args ? args->timeoutMs : 0);
        if (status != CUDA_SUCCESS) process.state = CU_PROCESS_STATE_RUNNING;
        return status;
    });
}

SIM_ENTRY(apart, 12080) cuCheckpointProcessCheckpoint(Call&, int pid, CUcheckpointCheckpointArgs* args) {
    return about(pid, CU_PROCESS_STATE_LOCKED, [&](SharedProcess& process) {
        if (args && has_reserved(*args, 0)) return CUDA_ERROR_INVALID_VALUE;
        if (process.cannot) {
            process.state = CU_PROCESS_STATE_FAILED;
            return CUDA_ERROR_UNKNOWN;
        }
        if (process.managed != 0) return CUDA_ERROR_NOT_SUPPORTED;
        process.hidden = hides_registered(process);
        DeviceBudget::instance().put_away(process);
        process.state = CU_PROCESS_STATE_CHECKPOINTED;
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(apart, 12080) cuCheckpointProcessRestore(Call&, int pid, CUcheckpointRestoreArgs* args) {
    return about(pid, CU_PROCESS_STATE_CHECKPOINTED, [&](SharedProcess& process) {
        SIM_FIND(gpus, gpus_after(process, args), CUDA_ERROR_INVALID_VALUE);
        if (process.lost) return CUDA_ERROR_OPERATING_SYSTEM;
        const auto status = status_of_standing(process);
        process.lost = status != CUDA_SUCCESS;
        if (process.lost) return status;
        if (!DeviceBudget::instance().bring_back(process, *gpus)) {
            process.lost = true;
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        process.restored = true;
        process.state = CU_PROCESS_STATE_LOCKED;
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(apart, 12080) cuCheckpointProcessUnlock(Call&, int pid, CUcheckpointUnlockArgs* args) {
    return about(pid, CU_PROCESS_STATE_LOCKED, [&](SharedProcess& process) {
        if (args && has_reserved(*args, 0)) return CUDA_ERROR_INVALID_VALUE;
        process.state = CU_PROCESS_STATE_RUNNING;
        return CUDA_SUCCESS;
    });
}
