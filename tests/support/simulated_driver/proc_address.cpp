// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuGetProcAddress, and the symbols that programs still ask for though cuda.h has newer ones.

#include "support/simulated_driver/per_thread.hpp"

#include <array>
#include <string_view>

namespace gpu_sleep::sim {
namespace {

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

SIM_ENTRY(early, 12000)
cuGetProcAddress(Call&, const char* name, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* result) {
    return look_up(name, function, version, flags, result);
}

SIM_OLDER(3020) cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    return cuCtxCreate(context, nullptr, flags, device);
}

SIM_OLDER(11030)
cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                          const CUgraphNode** dependencies, std::size_t* count) {
    return cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}

SIM_OLDER(12050) cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
    if (green) *green = nullptr;
    return cuStreamGetCtx(stream, context);
}

/// In another context, as cuCtxPushCurrent and cuCtxPopCurrent around the call would have it.
SIM_OLDER(13000) cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
    if (!context) return cuCtxGetDevice(device);
    SIM_TRY(cuCtxPushCurrent(context));
    const auto status = cuCtxGetDevice(device);
    cuCtxPopCurrent(nullptr);
    return status;
}

SIM_OLDER(13000) cuCtxSynchronize_v2(CUcontext context) {
    if (!context) return cuCtxSynchronize();
    SIM_TRY(cuCtxPushCurrent(context));
    const auto status = cuCtxSynchronize();
    cuCtxPopCurrent(nullptr);
    return status;
}

#undef cuMemcpyBatchAsync
SIM_OLDER(12080)
cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                   CUmemcpyAttributes* attributes, std::size_t* firsts, std::size_t attribute_count,
                   std::size_t* failed, CUstream stream) {
    if (failed) *failed = ~std::size_t{0};
    return cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, firsts, attribute_count, stream);
}

#undef cuMemPrefetchAsync
SIM_OLDER(8000) cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync_v2(address, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, device}, 0, stream);
}

#undef cuEventElapsedTime
SIM_OLDER(2000) cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

/// Stands for an entry point of a later driver, which no cuda.h declares yet: a memset under another name.
/// It takes more arguments than there are registers, of both kinds.
SIM_OLDER(13000)
cuFutureSubmit(float half, CUdeviceptr address, std::size_t bytes, double other_half, CUstream stream,
               std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
    const auto value = 2.0 * half + 2.0 * other_half + static_cast<double>(a + b + c + d);
    return cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes, stream);
}

/// The same, of one that only asks: a later version of one that is known.
SIM_OLDER(99000) cuDriverGetVersion_v9(int* version) {
    return cuDriverGetVersion(version);
}

#undef cuGetProcAddress
SIM_OLDER(11030) cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
    void* found = nullptr;
    SIM_TRY(cuGetProcAddress_v2(name, &found, version, flags, nullptr));
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    if (!found) return CUDA_ERROR_NOT_FOUND; // the pointer stays as it was
    *function = found;
    return CUDA_SUCCESS;
}

GPU_SLEEP_SIM_OLDER_PER_THREAD(SIM_DEFINE_PER_THREAD)

namespace gpu_sleep::sim {
namespace {

/// A function that no symbol of the library leads to: what the look-up gives for cuGraphInstantiate.
CUresult CUDAAPI instantiate_by_look_up(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    return cuGraphInstantiateWithFlags(exec, graph, flags);
}

std::span<const Symbol> other_symbols() {
#define SIM_ROW(name, symbol, version) Symbol{#name, reinterpret_cast<void*>(&::symbol), version},
    static const std::array k_symbols = {
        GPU_SLEEP_SIM_OLDER(SIM_ROW)
        // What shares a function with another name or version.
        Symbol{"cuGraphInstantiate", reinterpret_cast<void*>(&instantiate_by_look_up), 12000},
        Symbol{"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(&cuGraphInstantiate), 11040},
        Symbol{"cuIpcOpenMemHandle", reinterpret_cast<void*>(&cuIpcOpenMemHandle), 4010},
    };
    return k_symbols;
}

std::span<const Symbol> other_per_thread_symbols() {
    static const std::array k_symbols = {GPU_SLEEP_SIM_OLDER_PER_THREAD(SIM_PER_THREAD_ROW)};
    return k_symbols;
}

} // namespace
} // namespace gpu_sleep::sim
