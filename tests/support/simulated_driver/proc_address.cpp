// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuGetProcAddress, and the symbols that programs still ask for though cuda.h has newer ones.

#include "support/simulated_driver/contexts.hpp"

#include <array>
#include <string_view>

#define SIM_OLDER_SYMBOL extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

namespace gpu_sleep::sim {
namespace {

/// The look-up as CUDA 11.3 knew it.
using OldLookUp = CUresult(CUDAAPI*)(const char*, void**, int, cuuint64_t);

/// Symbols, beside those in the table of entry points, that names mean or meant.
std::span<const Symbol> other_symbols();
/// Of those, the ones for a per-thread default stream.
std::span<const Symbol> other_per_thread_symbols();

/// Finds what `name` means to a program built for `version`; else `function` stays as it is.
CUdriverProcAddressQueryResult find(std::string_view name, int version, bool per_thread, void** function) {
    auto result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int best = -1;
    const auto consider = [&](const char* candidate, void* pointer, int since) {
        if (name != candidate) return;
        if (result == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            result = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (since > version || since < best) return;
        best = since;
        *function = pointer;
        result = CU_GET_PROC_ADDRESS_SUCCESS;
    };
    if (per_thread) {
        for (const auto& own : other_per_thread_symbols()) consider(own.name, own.function, own.version);
        for (const auto& own : per_thread_symbols()) consider(own.name, own.function, own.version);
        // Programs with a default stream a thread never get the plain symbol of such a name.
        if (result != CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) return result;
    }
    for (const auto& point : entry_points()) consider(point.name, point.function, point.version);
    for (const auto& other : other_symbols()) consider(other.name, other.function, other.version);
    return result;
}

CUresult look_up(const char* name, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* result) {
    constexpr cuuint64_t k_per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if ((flags & ~(k_per_thread | CU_GET_PROC_ADDRESS_LEGACY_STREAM)) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    *function = nullptr; // which is the answer where there is none
    const auto found = find(name, version, (flags & k_per_thread) != 0, function);
    if (result) *result = found;
    return CUDA_SUCCESS;
}

} // namespace
} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

CUresult CUDAAPI cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* result) {
    return call(Entry::cuGetProcAddress,
                [&](Call&) { return look_up(name, function, version, flags, result); });
}

SIM_OLDER_SYMBOL cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    return cuCtxCreate(context, nullptr, flags, device);
}

SIM_OLDER_SYMBOL cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies,
                                           std::size_t* count) {
    return cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}

SIM_OLDER_SYMBOL cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* status,
                                                cuuint64_t* id, CUgraph* graph,
                                                const CUgraphNode** dependencies, std::size_t* count) {
    const PerThreadDefault scope;
    return cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}

SIM_OLDER_SYMBOL cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
    if (green) *green = nullptr;
    return cuStreamGetCtx(stream, context);
}

SIM_OLDER_SYMBOL cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* context, CUgreenCtx* green) {
    const PerThreadDefault scope;
    return cuStreamGetCtx_v2(stream, context, green);
}

/// In another context, as cuCtxPushCurrent and cuCtxPopCurrent around the call would have it.
SIM_OLDER_SYMBOL cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
    if (!context) return cuCtxGetDevice(device);
    if (const auto status = cuCtxPushCurrent(context); status != CUDA_SUCCESS) return status;
    const auto status = cuCtxGetDevice(device);
    cuCtxPopCurrent(nullptr);
    return status;
}

SIM_OLDER_SYMBOL cuCtxSynchronize_v2(CUcontext context) {
    if (!context) return cuCtxSynchronize();
    if (const auto status = cuCtxPushCurrent(context); status != CUDA_SUCCESS) return status;
    const auto status = cuCtxSynchronize();
    cuCtxPopCurrent(nullptr);
    return status;
}

#undef cuMemcpyBatchAsync
SIM_OLDER_SYMBOL cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                                    CUmemcpyAttributes* attributes, std::size_t* firsts,
                                    std::size_t attribute_count, std::size_t* failed, CUstream stream) {
    if (failed) *failed = ~std::size_t{0};
    return cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, firsts, attribute_count, stream);
}

SIM_OLDER_SYMBOL cuMemcpyBatchAsync_ptsz(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                                         std::size_t count, CUmemcpyAttributes* attributes,
                                         std::size_t* firsts, std::size_t attribute_count,
                                         std::size_t* failed, CUstream stream) {
    const PerThreadDefault scope;
    return cuMemcpyBatchAsync(to, from, bytes, count, attributes, firsts, attribute_count, failed, stream);
}

#undef cuMemPrefetchAsync
SIM_OLDER_SYMBOL cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUdevice device,
                                    CUstream stream) {
    return cuMemPrefetchAsync_v2(address, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, device}, 0, stream);
}

SIM_OLDER_SYMBOL cuMemPrefetchAsync_ptsz(CUdeviceptr address, std::size_t bytes, CUdevice device,
                                         CUstream stream) {
    const PerThreadDefault scope;
    return cuMemPrefetchAsync(address, bytes, device, stream);
}

#undef cuEventElapsedTime
SIM_OLDER_SYMBOL cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

/// Stands for an entry point of a later driver, which no cuda.h declares yet: a memset under another name.
/// It takes more arguments than there are registers, of both kinds.
SIM_OLDER_SYMBOL cuFutureSubmit(float half, CUdeviceptr address, std::size_t bytes, double other_half,
                                CUstream stream, std::uint64_t a, std::uint64_t b, std::uint64_t c,
                                std::uint64_t d) {
    const auto value = 2.0 * half + 2.0 * other_half + static_cast<double>(a + b + c + d);
    return cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes, stream);
}

/// The same, of one that only asks: a later version of one that is known.
SIM_OLDER_SYMBOL cuDriverGetVersion_v9(int* version) {
    return cuDriverGetVersion(version);
}

#undef cuGetProcAddress
SIM_OLDER_SYMBOL cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
    void* found = nullptr;
    const auto status = cuGetProcAddress_v2(name, &found, version, flags, nullptr);
    if (status != CUDA_SUCCESS) return status;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    if (!found) return CUDA_ERROR_NOT_FOUND; // the pointer stays as it was
    *function = found;
    return CUDA_SUCCESS;
}

namespace gpu_sleep::sim {
namespace {

/// A function that no symbol of the library leads to: what the look-up gives for cuGraphInstantiate.
CUresult CUDAAPI instantiate_by_look_up(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    return cuGraphInstantiateWithFlags(exec, graph, flags);
}

std::span<const Symbol> other_symbols() {
    static const std::array k_symbols = {
        Symbol{"cuCtxCreate", reinterpret_cast<void*>(&cuCtxCreate_v2), 3020},
        Symbol{"cuCtxGetDevice", reinterpret_cast<void*>(&cuCtxGetDevice_v2), 13000},
        Symbol{"cuCtxSynchronize", reinterpret_cast<void*>(&cuCtxSynchronize_v2), 13000},
        Symbol{"cuStreamGetCtx", reinterpret_cast<void*>(&cuStreamGetCtx_v2), 12050},
        Symbol{"cuGraphInstantiate", reinterpret_cast<void*>(&instantiate_by_look_up), 12000},
        Symbol{"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(&cuGraphInstantiate), 11040},
        Symbol{"cuStreamGetCaptureInfo", reinterpret_cast<void*>(&cuStreamGetCaptureInfo_v2), 11030},
        Symbol{"cuEventElapsedTime", reinterpret_cast<void*>(&::cuEventElapsedTime), 2000},
        Symbol{"cuGetProcAddress", reinterpret_cast<void*>(static_cast<OldLookUp>(&::cuGetProcAddress)),
               11030},
        Symbol{"cuMemcpyBatchAsync", reinterpret_cast<void*>(&::cuMemcpyBatchAsync), 12080},
        Symbol{"cuMemPrefetchAsync", reinterpret_cast<void*>(&::cuMemPrefetchAsync), 8000},
        Symbol{"cuIpcOpenMemHandle", reinterpret_cast<void*>(&cuIpcOpenMemHandle), 4010},
        Symbol{"cuFutureSubmit", reinterpret_cast<void*>(&cuFutureSubmit), 13000},
        Symbol{"cuDriverGetVersion", reinterpret_cast<void*>(&cuDriverGetVersion_v9), 99000},
    };
    return k_symbols;
}

std::span<const Symbol> other_per_thread_symbols() {
    static const std::array k_symbols = {
        Symbol{"cuStreamGetCtx", reinterpret_cast<void*>(&cuStreamGetCtx_v2_ptsz), 12050},
        Symbol{"cuStreamGetCaptureInfo", reinterpret_cast<void*>(&cuStreamGetCaptureInfo_v2_ptsz), 11030},
        Symbol{"cuMemcpyBatchAsync", reinterpret_cast<void*>(&cuMemcpyBatchAsync_ptsz), 12080},
        Symbol{"cuMemPrefetchAsync", reinterpret_cast<void*>(&cuMemPrefetchAsync_ptsz), 8000},
    };
    return k_symbols;
}

} // namespace
} // namespace gpu_sleep::sim
