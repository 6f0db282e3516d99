// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Noting the last one, and asking the driver about it.

#include "intercepted/failed_context.hpp"

#include "driver/context.hpp"
#include "intercepted/state.hpp"

#include <atomic>

namespace gpu_sleep::agent::intercepted {
namespace {

constinit std::atomic<CUcontext> g_failed{nullptr};

} // namespace

void note_failure(CUresult status) noexcept {
    if (!driver::ends_context(status)) return;
    CUcontext context = nullptr;
    const auto* const with = memory();
    if (with && with->api().cuCtxGetCurrent(&context) == CUDA_SUCCESS) g_failed = context;
}

CUresult failure_of(CUcontext context) noexcept {
    if (!context || context != g_failed.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
    std::size_t free = 0;
    std::size_t total = 0;
    const auto* const with = memory();
    if (!with) return CUDA_SUCCESS;
    const driver::CurrentContext entered(with->api(), context);
    const auto status =
        entered.status() == CUDA_SUCCESS ? with->api().cuMemGetInfo(&free, &total) : entered.status();
    if (driver::ends_context(status)) return status;
    g_failed = nullptr; // another one has its handle
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::agent::intercepted
