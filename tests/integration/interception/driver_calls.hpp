// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver's functions as the capture program found them. It is built once for each way in which programs
// reach libcuda, and nothing of it but find_driver() differs.

#pragma once

#include "support/simulated_driver/control.h"

#include <cuda.h>

#include <cstdint>

namespace gpu_sleep::test {

// clang-format off
#define GPU_SLEEP_TEST_CALLS(X) \
    X(cuInit) X(cuGetErrorName) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxReset) X(cuCtxCreate) \
    X(cuCtxDestroy) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuEventCreate) X(cuEventDestroy) \
    X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamBeginCapture) \
    X(cuStreamEndCapture) X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphDestroy) X(cuGraphExecDestroy) \
    X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) X(cuMemAlloc) X(cuMemAllocPitch) \
    X(cuMemAllocManaged) X(cuMemFree) X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync) \
    X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolExportToShareableHandle) \
    X(cuMemPoolImportFromShareableHandle) X(cuMemPoolExportPointer) X(cuMemPoolImportPointer) \
    X(cuMemPoolGetAttribute) X(cuMemPoolSetAccess) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) \
    X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemRetainAllocationHandle) \
    X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuImportExternalMemory) \
    X(cuDestroyExternalMemory) X(cuImportExternalSemaphore) X(cuDestroyExternalSemaphore) \
    X(cuMulticastCreate) X(cuMulticastBindAddr) X(cuArrayCreate) X(cuArrayDestroy) X(cuMemcpyHtoA) \
    X(cuMemcpyAtoH) X(cuMemGetAddressRange) X(cuPointerGetAttribute) X(cuPointerSetAttribute) \
    X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) \
    X(cuIpcOpenEventHandle) X(cuMemsetD8Async) X(cuMemcpyDtoH) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync)
// clang-format on

/// Named as in cuda.h, whose macros rename members and uses alike.
struct DriverCalls {
#define GPU_SLEEP_TEST_MEMBER(name) decltype(&::name) name = nullptr;
    GPU_SLEEP_TEST_CALLS(GPU_SLEEP_TEST_MEMBER)
#undef GPU_SLEEP_TEST_MEMBER
};

// Two steps, so that cuda.h's macros are applied before the name becomes a string: the exported symbol.
#define GPU_SLEEP_TEST_STRING(name) #name
#define GPU_SLEEP_TEST_SYMBOL(name) GPU_SLEEP_TEST_STRING(name)

/// Finds them, each build in its own way. Ends the program when one is missing.
[[nodiscard]] DriverCalls find_driver();

/// Looks a function up, or ends the program.
[[nodiscard]] void* find_or_die(void* library, const char* symbol);

/// The functions; found at the first call.
[[nodiscard]] const DriverCalls& cuda();

/// What tests ask of the simulated driver, such as sim_clear; found by dlsym, as nothing else of it needs to
/// be linked.
#define GPU_SLEEP_TEST_CONTROL(name) reinterpret_cast<decltype(&::name)>(find_control(#name))
[[nodiscard]] void* find_control(const char* symbol);

} // namespace gpu_sleep::test
