// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding the running agent and the caller's frame for an intercepted call, and the list of unknown calls.

#include "intercepted/calls.hpp"

#include "gate/gate.hpp"

namespace gpu_sleep::agent::intercepted {

CUresult refused() noexcept {
    return gate::Gate::instance().is_abandoned() ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult to_status(const Error& error) noexcept {
    if (error.driver_status != 0) return static_cast<CUresult>(error.driver_status);
    switch (error.code) {
    case ErrorCode::out_of_device_memory:
    case ErrorCode::out_of_host_memory: return CUDA_ERROR_OUT_OF_MEMORY;
    case ErrorCode::invalid_argument: return CUDA_ERROR_INVALID_VALUE;
    case ErrorCode::context_lost: return CUDA_ERROR_DEINITIALIZED;
    default: return CUDA_ERROR_UNKNOWN;
    }
}

CUcontext context_of(ProgramMemory& memory, CUstream stream) {
    CUcontext context = nullptr;
    const bool has_handle = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (has_handle && memory.api().cuStreamGetCtx) {
        if (memory.api().cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) return context;
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        if (memory.api().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return nullptr;
    }
    return memory.api().cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

void give_range(ProgramMemory& memory, CUdeviceptr address) {
    if (const auto freed = memory.free(address); !freed)
        log::warning("range {:#x} could not be freed: {}", address, freed.error().message);
}

void note_unknown_call(const char* name) noexcept {
    for (auto& each : books().unseen.calls) {
        const char* noted = nullptr;
        if (each.compare_exchange_strong(noted, name) || noted == name) return;
    }
}

std::vector<std::string> called_unknown() {
    std::vector<std::string> called;
    for (const char* name : books().unseen.calls)
        if (name) called.emplace_back(name);
    return called;
}

} // namespace gpu_sleep::agent::intercepted
