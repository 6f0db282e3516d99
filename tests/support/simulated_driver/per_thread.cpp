// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The symbols of programs compiled with a per-thread default stream: each is its plain namesake, with another
// meaning of the null stream.

#include "support/simulated_driver/contexts.hpp"

#include <array>
#include <tuple>

namespace gpu_sleep::sim {
namespace {

template <class Function>
struct Signature;

template <class... Parameters>
struct Signature<CUresult(Parameters...)> {
    template <std::size_t Index>
    using Parameter = std::tuple_element_t<Index, std::tuple<Parameters...>>;
};

template <class Function, class... Arguments>
CUresult call_per_thread(Function& function, Arguments... arguments) noexcept {
    const PerThreadDefault scope;
    return function(arguments...);
}

} // namespace
} // namespace gpu_sleep::sim

// X(name, suffix, version, parameters): `name` as in cuda.h; the CUDA version from which on the symbol with
// that suffix is what the name means to such programs; how many parameters it has.
#define GPU_SLEEP_SIM_PER_THREAD_SYMBOLS(X)                                                                  \
    X(cuMemcpy, _ptds, 7000, 3)                                                                              \
    X(cuMemcpyHtoD, _ptds, 7000, 3)                                                                          \
    X(cuMemcpyDtoH, _ptds, 7000, 3)                                                                          \
    X(cuMemcpyDtoD, _ptds, 7000, 3)                                                                          \
    X(cuMemcpyHtoA, _ptds, 7000, 4)                                                                          \
    X(cuMemcpyAtoH, _ptds, 7000, 4)                                                                          \
    X(cuMemcpyPeer, _ptds, 7000, 5)                                                                          \
    X(cuMemcpy2D, _ptds, 7000, 1)                                                                            \
    X(cuMemcpy2DUnaligned, _ptds, 7000, 1)                                                                   \
    X(cuMemcpy3D, _ptds, 7000, 1)                                                                            \
    X(cuMemsetD8, _ptds, 7000, 3)                                                                            \
    X(cuMemsetD16, _ptds, 7000, 3)                                                                           \
    X(cuMemsetD32, _ptds, 7000, 3)                                                                           \
    X(cuMemsetD2D8, _ptds, 7000, 5)                                                                          \
    X(cuMemsetD2D16, _ptds, 7000, 5)                                                                         \
    X(cuMemsetD2D32, _ptds, 7000, 5)                                                                         \
    X(cuMemcpyAsync, _ptsz, 7000, 4)                                                                         \
    X(cuMemcpyHtoDAsync, _ptsz, 7000, 4)                                                                     \
    X(cuMemcpyDtoHAsync, _ptsz, 7000, 4)                                                                     \
    X(cuMemcpyDtoDAsync, _ptsz, 7000, 4)                                                                     \
    X(cuMemcpyPeerAsync, _ptsz, 7000, 6)                                                                     \
    X(cuMemcpy2DAsync, _ptsz, 7000, 2)                                                                       \
    X(cuMemcpy3DAsync, _ptsz, 7000, 2)                                                                       \
    X(cuMemcpyBatchAsync, _ptsz, 13000, 8)                                                                   \
    X(cuMemsetD8Async, _ptsz, 7000, 4)                                                                       \
    X(cuMemsetD16Async, _ptsz, 7000, 4)                                                                      \
    X(cuMemsetD32Async, _ptsz, 7000, 4)                                                                      \
    X(cuMemsetD2D8Async, _ptsz, 7000, 6)                                                                     \
    X(cuMemsetD2D16Async, _ptsz, 7000, 6)                                                                    \
    X(cuMemsetD2D32Async, _ptsz, 7000, 6)                                                                    \
    X(cuMemAllocAsync, _ptsz, 11020, 3)                                                                      \
    X(cuMemAllocFromPoolAsync, _ptsz, 11020, 4)                                                              \
    X(cuMemFreeAsync, _ptsz, 11020, 2)                                                                       \
    X(cuMemPrefetchAsync, _ptsz, 12020, 5)                                                                   \
    X(cuStreamGetPriority, _ptsz, 7000, 2)                                                                   \
    X(cuStreamGetId, _ptsz, 12000, 2)                                                                        \
    X(cuStreamGetFlags, _ptsz, 7000, 2)                                                                      \
    X(cuStreamGetDevice, _ptsz, 12080, 2)                                                                    \
    X(cuStreamGetCtx, _ptsz, 9020, 2)                                                                        \
    X(cuStreamWaitEvent, _ptsz, 7000, 3)                                                                     \
    X(cuStreamAddCallback, _ptsz, 7000, 4)                                                                   \
    X(cuStreamQuery, _ptsz, 7000, 1)                                                                         \
    X(cuStreamSynchronize, _ptsz, 7000, 1)                                                                   \
    X(cuStreamBeginCapture, _ptsz, 10010, 2)                                                                 \
    X(cuStreamBeginCaptureToGraph, _ptsz, 12030, 6)                                                          \
    X(cuStreamEndCapture, _ptsz, 10000, 2)                                                                   \
    X(cuStreamIsCapturing, _ptsz, 10000, 2)                                                                  \
    X(cuStreamGetCaptureInfo, _ptsz, 12030, 7)                                                               \
    X(cuStreamWriteValue32, _ptsz, 11070, 4)                                                                 \
    X(cuStreamWriteValue64, _ptsz, 11070, 4)                                                                 \
    X(cuStreamWaitValue32, _ptsz, 11070, 4)                                                                  \
    X(cuStreamWaitValue64, _ptsz, 11070, 4)                                                                  \
    X(cuStreamBatchMemOp, _ptsz, 11070, 4)                                                                   \
    X(cuEventRecord, _ptsz, 7000, 2)                                                                         \
    X(cuEventRecordWithFlags, _ptsz, 11010, 3)                                                               \
    X(cuLaunchKernel, _ptsz, 7000, 11)                                                                       \
    X(cuLaunchKernelEx, _ptsz, 11060, 4)                                                                     \
    X(cuLaunchCooperativeKernel, _ptsz, 9000, 10)                                                            \
    X(cuLaunchHostFunc, _ptsz, 10000, 3)                                                                     \
    X(cuGraphInstantiateWithParams, _ptsz, 12000, 3)                                                         \
    X(cuGraphUpload, _ptsz, 11010, 2)                                                                        \
    X(cuGraphLaunch, _ptsz, 10000, 2)

// Two steps, so that cuda.h's renaming macros are applied before the suffix is.
#define SIM_JOIN_NOW(name, suffix) name##suffix
#define SIM_JOIN(name, suffix) SIM_JOIN_NOW(name, suffix)

#define SIM_PARAMETER(name, index)                                                                           \
    gpu_sleep::sim::Signature<decltype(::name)>::Parameter<index> argument##index
#define SIM_PARAMETERS_1(name) SIM_PARAMETER(name, 0)
#define SIM_PARAMETERS_2(name) SIM_PARAMETERS_1(name), SIM_PARAMETER(name, 1)
#define SIM_PARAMETERS_3(name) SIM_PARAMETERS_2(name), SIM_PARAMETER(name, 2)
#define SIM_PARAMETERS_4(name) SIM_PARAMETERS_3(name), SIM_PARAMETER(name, 3)
#define SIM_PARAMETERS_5(name) SIM_PARAMETERS_4(name), SIM_PARAMETER(name, 4)
#define SIM_PARAMETERS_6(name) SIM_PARAMETERS_5(name), SIM_PARAMETER(name, 5)
#define SIM_PARAMETERS_7(name) SIM_PARAMETERS_6(name), SIM_PARAMETER(name, 6)
#define SIM_PARAMETERS_8(name) SIM_PARAMETERS_7(name), SIM_PARAMETER(name, 7)
#define SIM_PARAMETERS_9(name) SIM_PARAMETERS_8(name), SIM_PARAMETER(name, 8)
#define SIM_PARAMETERS_10(name) SIM_PARAMETERS_9(name), SIM_PARAMETER(name, 9)
#define SIM_PARAMETERS_11(name) SIM_PARAMETERS_10(name), SIM_PARAMETER(name, 10)
#define SIM_ARGUMENTS_1 argument0
#define SIM_ARGUMENTS_2 SIM_ARGUMENTS_1, argument1
#define SIM_ARGUMENTS_3 SIM_ARGUMENTS_2, argument2
#define SIM_ARGUMENTS_4 SIM_ARGUMENTS_3, argument3
#define SIM_ARGUMENTS_5 SIM_ARGUMENTS_4, argument4
#define SIM_ARGUMENTS_6 SIM_ARGUMENTS_5, argument5
#define SIM_ARGUMENTS_7 SIM_ARGUMENTS_6, argument6
#define SIM_ARGUMENTS_8 SIM_ARGUMENTS_7, argument7
#define SIM_ARGUMENTS_9 SIM_ARGUMENTS_8, argument8
#define SIM_ARGUMENTS_10 SIM_ARGUMENTS_9, argument9
#define SIM_ARGUMENTS_11 SIM_ARGUMENTS_10, argument10

#define SIM_DEFINE(name, suffix, version, count)                                                             \
    extern "C" CUresult CUDAAPI SIM_JOIN(name, suffix)(SIM_PARAMETERS_##count(name)) {                       \
        return gpu_sleep::sim::call_per_thread(::name, SIM_ARGUMENTS_##count);                               \
    }
GPU_SLEEP_SIM_PER_THREAD_SYMBOLS(SIM_DEFINE)

std::span<const gpu_sleep::sim::Symbol> gpu_sleep::sim::per_thread_symbols() noexcept {
#define SIM_ROW(name, suffix, version, count)                                                                \
    Symbol{#name, reinterpret_cast<void*>(&SIM_JOIN(::name, suffix)), version},
    static const std::array k_symbols = {GPU_SLEEP_SIM_PER_THREAD_SYMBOLS(SIM_ROW)};
    return k_symbols;
}
