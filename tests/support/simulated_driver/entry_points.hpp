// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The one list of driver functions that are simulated: what each is called, since when, and when it may be
// called.

#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

namespace gpu_sleep::sim {

/// What distinguishes the calls of an entry point.
enum class Trait : std::uint8_t {
    early,  ///< works before cuInit
    apart,  ///< about another process: takes no lock of this one's, and waits for nobody who holds this one
    safe,   ///< may be called while a stream captures
    queued, ///< safe, and gives work to a stream: a delay applies when that is executed
    unsafe, ///< forbidden while a capture under way forbids it; then it breaks the capture
};

// X(name, version, trait): `name` as in cuda.h, whose macros give the exported symbol; the CUDA version, as
// cuGetProcAddress counts, from which on that symbol is what the name means.
#define GPU_SLEEP_SIM_ENTRY_POINTS(X)                                                                        \
    X(cuInit, 2000, early)                                                                                   \
    X(cuDriverGetVersion, 2020, early)                                                                       \
    X(cuGetErrorName, 6000, early)                                                                           \
    X(cuGetErrorString, 6000, early)                                                                         \
    X(cuGetProcAddress, 12000, early)                                                                        \
    X(cuDeviceGet, 2000, safe)                                                                               \
    X(cuDeviceGetCount, 2000, safe)                                                                          \
    X(cuDeviceGetName, 2000, safe)                                                                           \
    X(cuDeviceGetUuid, 11040, safe)                                                                          \
    X(cuDeviceTotalMem, 3020, safe)                                                                          \
    X(cuDeviceGetAttribute, 2000, safe)                                                                      \
    X(cuDeviceGetPCIBusId, 4010, safe)                                                                       \
    X(cuDeviceGetByPCIBusId, 4010, safe)                                                                     \
    X(cuDeviceCanAccessPeer, 4000, safe)                                                                     \
    X(cuDeviceGetP2PAttribute, 8000, safe)                                                                   \
    X(cuDeviceGetDefaultMemPool, 11020, safe)                                                                \
    X(cuDeviceGetMemPool, 11020, safe)                                                                       \
    X(cuDeviceSetMemPool, 11020, safe)                                                                       \
    X(cuDeviceGraphMemTrim, 11040, safe)                                                                     \
    X(cuDevicePrimaryCtxRetain, 7000, safe)                                                                  \
    X(cuDevicePrimaryCtxRelease, 11000, safe)                                                                \
    X(cuDevicePrimaryCtxReset, 11000, safe)                                                                  \
    X(cuDevicePrimaryCtxSetFlags, 11000, safe)                                                               \
    X(cuDevicePrimaryCtxGetState, 7000, safe)                                                                \
    X(cuCtxCreate, 12050, safe)                                                                              \
    X(cuCtxDestroy, 4000, safe)                                                                              \
    X(cuCtxPushCurrent, 4000, safe)                                                                          \
    X(cuCtxPopCurrent, 4000, safe)                                                                           \
    X(cuCtxSetCurrent, 4000, safe)                                                                           \
    X(cuCtxGetCurrent, 4000, safe)                                                                           \
    X(cuCtxGetDevice, 2000, safe)                                                                            \
    X(cuCtxGetFlags, 7000, safe)                                                                             \
    X(cuCtxGetId, 12000, safe)                                                                               \
    X(cuCtxGetApiVersion, 3020, safe)                                                                        \
    X(cuCtxGetLimit, 3010, safe)                                                                             \
    X(cuCtxSetLimit, 3010, safe)                                                                             \
    X(cuCtxGetStreamPriorityRange, 5050, safe)                                                               \
    X(cuCtxEnablePeerAccess, 4000, safe)                                                                     \
    X(cuCtxDisablePeerAccess, 4000, safe)                                                                    \
    X(cuCtxSynchronize, 2000, safe)                                                                          \
    X(cuCtxFromGreenCtx, 12040, safe)                                                                        \
    X(cuGreenCtxCreate, 12040, safe)                                                                         \
    X(cuGreenCtxDestroy, 12040, safe)                                                                        \
    X(cuGreenCtxStreamCreate, 12050, safe)                                                                   \
    X(cuCtxRecordEvent, 12050, safe)                                                                         \
    X(cuCtxWaitEvent, 12050, safe)                                                                           \
    X(cuStreamCreate, 2000, safe)                                                                            \
    X(cuStreamCreateWithPriority, 5050, safe)                                                                \
    X(cuStreamDestroy, 4000, safe)                                                                           \
    X(cuStreamGetCtx, 9020, safe)                                                                            \
    X(cuStreamGetDevice, 12080, safe)                                                                        \
    X(cuStreamGetFlags, 5050, safe)                                                                          \
    X(cuStreamGetId, 12000, safe)                                                                            \
    X(cuStreamGetPriority, 5050, safe)                                                                       \
    X(cuStreamQuery, 2000, unsafe)                                                                           \
    X(cuStreamSynchronize, 2000, unsafe)                                                                     \
    X(cuStreamWaitEvent, 3020, queued)                                                                       \
    X(cuStreamAddCallback, 5000, queued)                                                                     \
    X(cuLaunchHostFunc, 10000, queued)                                                                       \
    X(cuStreamWriteValue32, 11070, queued)                                                                   \
    X(cuStreamWriteValue64, 11070, queued)                                                                   \
    X(cuStreamWaitValue32, 11070, queued)                                                                    \
    X(cuStreamWaitValue64, 11070, queued)                                                                    \
    X(cuStreamBatchMemOp, 11070, queued)                                                                     \
    X(cuEventCreate, 2000, safe)                                                                             \
    X(cuEventDestroy, 4000, safe)                                                                            \
    X(cuEventRecord, 2000, queued)                                                                           \
    X(cuEventRecordWithFlags, 11010, queued)                                                                 \
    X(cuEventQuery, 2000, safe)                                                                              \
    X(cuEventSynchronize, 2000, safe)                                                                        \
    X(cuEventElapsedTime, 12080, safe)                                                                       \
    X(cuThreadExchangeStreamCaptureMode, 10010, safe)                                                        \
    X(cuStreamBeginCapture, 10010, safe)                                                                     \
    X(cuStreamBeginCaptureToGraph, 12030, safe)                                                              \
    X(cuStreamEndCapture, 10000, safe)                                                                       \
    X(cuStreamIsCapturing, 10000, safe)                                                                      \
    X(cuStreamGetCaptureInfo, 12030, safe)                                                                   \
    X(cuGraphCreate, 10000, safe)                                                                            \
    X(cuGraphAddKernelNode, 12000, safe)                                                                     \
    X(cuGraphAddMemcpyNode, 10000, safe)                                                                     \
    X(cuGraphAddMemsetNode, 10000, safe)                                                                     \
    X(cuGraphAddEmptyNode, 10000, safe)                                                                      \
    X(cuGraphAddNode, 13000, safe)                                                                           \
    X(cuGraphAddBatchMemOpNode, 11070, safe)                                                                 \
    X(cuGraphBatchMemOpNodeGetParams, 11070, safe)                                                           \
    X(cuGraphAddMemAllocNode, 11040, safe)                                                                   \
    X(cuGraphAddMemFreeNode, 11040, safe)                                                                    \
    X(cuGraphGetNodes, 10000, safe)                                                                          \
    X(cuGraphNodeGetType, 10000, safe)                                                                       \
    X(cuGraphKernelNodeGetParams, 12000, safe)                                                               \
    X(cuGraphKernelNodeSetParams, 12000, safe)                                                               \
    X(cuGraphMemcpyNodeGetParams, 10000, safe)                                                               \
    X(cuGraphMemcpyNodeSetParams, 10000, safe)                                                               \
    X(cuGraphNodeSetParams, 12020, safe)                                                                     \
    X(cuGraphMemsetNodeGetParams, 10000, safe)                                                               \
    X(cuGraphMemAllocNodeGetParams, 11040, safe)                                                             \
    X(cuGraphMemFreeNodeGetParams, 11040, safe)                                                              \
    X(cuGraphInstantiate, 12000, safe)                                                                       \
    X(cuGraphInstantiateWithParams, 12000, safe)                                                             \
    X(cuGraphExecUpdate, 12000, safe)                                                                        \
    X(cuGraphExecKernelNodeSetParams, 12000, safe)                                                           \
    X(cuGraphExecMemcpyNodeSetParams, 10020, safe)                                                           \
    X(cuGraphExecBatchMemOpNodeSetParams, 11070, safe)                                                       \
    X(cuGraphUpload, 11010, queued)                                                                          \
    X(cuGraphLaunch, 10000, queued)                                                                          \
    X(cuGraphExecDestroy, 10000, safe)                                                                       \
    X(cuGraphDestroy, 10000, safe)                                                                           \
    X(cuMemGetInfo, 3020, safe)                                                                              \
    X(cuMemAlloc, 3020, unsafe)                                                                              \
    X(cuMemAllocPitch, 3020, unsafe)                                                                         \
    X(cuMemAllocManaged, 6000, unsafe)                                                                       \
    X(cuMemFree, 3020, unsafe)                                                                               \
    X(cuArrayCreate, 3020, unsafe)                                                                           \
    X(cuArray3DCreate, 3020, unsafe)                                                                         \
    X(cuArrayDestroy, 2000, unsafe)                                                                          \
    X(cuMipmappedArrayCreate, 5000, unsafe)                                                                  \
    X(cuMipmappedArrayDestroy, 5000, unsafe)                                                                 \
    X(cuMemAdvise, 12020, safe)                                                                              \
    X(cuMemPrefetchAsync, 12020, queued)                                                                     \
    X(cuMemAllocAsync, 11020, queued)                                                                        \
    X(cuMemAllocFromPoolAsync, 11020, queued)                                                                \
    X(cuMemFreeAsync, 11020, queued)                                                                         \
    X(cuMemPoolCreate, 11020, safe)                                                                          \
    X(cuMemPoolDestroy, 11020, safe)                                                                         \
    X(cuMemPoolSetAttribute, 11020, safe)                                                                    \
    X(cuMemPoolGetAttribute, 11020, unsafe)                                                                  \
    X(cuMemPoolTrimTo, 11020, safe)                                                                          \
    X(cuMemPoolSetAccess, 11020, safe)                                                                       \
    X(cuMemPoolGetAccess, 11020, safe)                                                                       \
    X(cuIpcGetMemHandle, 4010, safe)                                                                         \
    X(cuIpcOpenMemHandle, 11000, safe)                                                                       \
    X(cuIpcCloseMemHandle, 4010, safe)                                                                       \
    X(cuMemGetAddressRange, 3020, safe)                                                                      \
    X(cuPointerGetAttribute, 4000, safe)                                                                     \
    X(cuPointerGetAttributes, 7000, safe)                                                                    \
    X(cuPointerSetAttribute, 6000, safe)                                                                     \
    X(cuMemAllocHost, 3020, unsafe)                                                                          \
    X(cuMemHostAlloc, 2020, unsafe)                                                                          \
    X(cuMemFreeHost, 2000, unsafe)                                                                           \
    X(cuMemHostRegister, 6050, unsafe)                                                                       \
    X(cuMemHostUnregister, 4000, unsafe)                                                                     \
    X(cuMemHostGetDevicePointer, 3020, safe)                                                                 \
    X(cuMemHostGetFlags, 2030, safe)                                                                         \
    X(cuMemGetAllocationGranularity, 10020, safe)                                                            \
    X(cuMemAddressReserve, 10020, safe)                                                                      \
    X(cuMemAddressFree, 10020, safe)                                                                         \
    X(cuMemCreate, 10020, safe)                                                                              \
    X(cuMemRelease, 10020, safe)                                                                             \
    X(cuMemRetainAllocationHandle, 11000, safe)                                                              \
    X(cuMemMap, 10020, safe)                                                                                 \
    X(cuMemMapArrayAsync, 11010, safe)                                                                       \
    X(cuMemUnmap, 10020, safe)                                                                               \
    X(cuMemSetAccess, 10020, safe)                                                                           \
    X(cuMemGetAccess, 10020, safe)                                                                           \
    X(cuMemGetAllocationPropertiesFromHandle, 10020, safe)                                                   \
    X(cuMemExportToShareableHandle, 10020, safe)                                                             \
    X(cuMemImportFromShareableHandle, 10020, safe)                                                           \
    X(cuMemcpy, 4000, unsafe)                                                                                \
    X(cuMemcpyHtoD, 3020, unsafe)                                                                            \
    X(cuMemcpyDtoH, 3020, unsafe)                                                                            \
    X(cuMemcpyDtoD, 3020, unsafe)                                                                            \
    X(cuMemcpyHtoA, 3020, unsafe)                                                                            \
    X(cuMemcpyAtoH, 3020, unsafe)                                                                            \
    X(cuMemcpyPeer, 4000, unsafe)                                                                            \
    X(cuMemcpy2D, 3020, unsafe)                                                                              \
    X(cuMemcpy2DUnaligned, 3020, unsafe)                                                                     \
    X(cuMemcpy3D, 3020, unsafe)                                                                              \
    X(cuMemcpyAsync, 4000, queued)                                                                           \
    X(cuMemcpyHtoDAsync, 3020, queued)                                                                       \
    X(cuMemcpyDtoHAsync, 3020, queued)                                                                       \
    X(cuMemcpyDtoDAsync, 3020, queued)                                                                       \
    X(cuMemcpyPeerAsync, 4000, queued)                                                                       \
    X(cuMemcpy2DAsync, 3020, queued)                                                                         \
    X(cuMemcpy3DAsync, 3020, queued)                                                                         \
    X(cuMemcpyBatchAsync, 13000, queued)                                                                     \
    X(cuMemcpy3DBatchAsync, 13000, queued)                                                                   \
    X(cuMemsetD8, 3020, queued)                                                                              \
    X(cuMemsetD16, 3020, queued)                                                                             \
    X(cuMemsetD32, 3020, queued)                                                                             \
    X(cuMemsetD2D8, 3020, queued)                                                                            \
    X(cuMemsetD2D16, 3020, queued)                                                                           \
    X(cuMemsetD2D32, 3020, queued)                                                                           \
    X(cuMemsetD8Async, 3020, queued)                                                                         \
    X(cuMemsetD16Async, 3020, queued)                                                                        \
    X(cuMemsetD32Async, 3020, queued)                                                                        \
    X(cuMemsetD2D8Async, 3020, queued)                                                                       \
    X(cuMemsetD2D16Async, 3020, queued)                                                                      \
    X(cuMemsetD2D32Async, 3020, queued)                                                                      \
    X(cuModuleLoad, 2000, unsafe)                                                                            \
    X(cuModuleLoadData, 2000, unsafe)                                                                        \
    X(cuModuleLoadDataEx, 2010, unsafe)                                                                      \
    X(cuModuleLoadFatBinary, 2000, unsafe)                                                                   \
    X(cuModuleUnload, 2000, unsafe)                                                                          \
    X(cuModuleGetFunction, 2000, safe)                                                                       \
    X(cuModuleGetLoadingMode, 11070, safe)                                                                   \
    X(cuLibraryLoadData, 12000, unsafe)                                                                      \
    X(cuLibraryUnload, 12000, unsafe)                                                                        \
    X(cuLibraryGetKernel, 12000, safe)                                                                       \
    X(cuKernelGetFunction, 12000, safe)                                                                      \
    X(cuKernelGetName, 12030, safe)                                                                          \
    X(cuKernelGetParamInfo, 12040, safe)                                                                     \
    X(cuFuncGetAttribute, 2020, safe)                                                                        \
    X(cuFuncSetAttribute, 9000, safe)                                                                        \
    X(cuFuncSetCacheConfig, 3000, safe)                                                                      \
    X(cuFuncGetModule, 11000, safe)                                                                          \
    X(cuFuncGetName, 12030, safe)                                                                            \
    X(cuFuncGetParamInfo, 12040, safe)                                                                       \
    X(cuLaunchKernel, 4000, queued)                                                                          \
    X(cuLaunchKernelEx, 11060, queued)                                                                       \
    X(cuLaunchCooperativeKernel, 9000, queued)                                                               \
    X(cuCheckpointProcessGetState, 12080, apart)                                                             \
    X(cuCheckpointProcessGetRestoreThreadId, 12080, apart)                                                   \
    X(cuCheckpointProcessLock, 12080, apart)                                                                 \
    X(cuCheckpointProcessCheckpoint, 12080, apart)                                                           \
    X(cuCheckpointProcessRestore, 12080, apart)                                                              \
    X(cuCheckpointProcessUnlock, 12080, apart)

/// Names an entry point; the enumerators are spelled as the exported symbols.
enum class Entry : std::uint16_t {
#define GPU_SLEEP_SIM_ENUMERATOR(name, version, trait) name,
    GPU_SLEEP_SIM_ENTRY_POINTS(GPU_SLEEP_SIM_ENUMERATOR)
#undef GPU_SLEEP_SIM_ENUMERATOR
        count
};

struct EntryPoint {
    const char* name;   ///< as documented, and as cuGetProcAddress takes it: "cuMemAlloc"
    const char* symbol; ///< as exported: "cuMemAlloc_v2"
    void* function;
    int version;
    Trait trait;
};

/// Another symbol that a name means, or meant to older programs.
struct Symbol {
    const char* name;
    void* function;
    int version; ///< as in EntryPoint
};

/// The symbols for programs that were compiled with a per-thread default stream. Their calls count as those
/// of the entry point. Static.
[[nodiscard]] std::span<const Symbol> per_thread_symbols() noexcept;

/// All entry points, in the order of Entry. Static.
[[nodiscard]] std::span<const EntryPoint> entry_points() noexcept;

[[nodiscard]] inline const EntryPoint& entry_point(Entry entry) noexcept {
    return entry_points()[static_cast<std::size_t>(entry)];
}

} // namespace gpu_sleep::sim
