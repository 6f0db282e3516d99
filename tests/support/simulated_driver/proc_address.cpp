// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuGetProcAddress, and the symbols that programs still ask for though cuda.h has newer ones.

#include "support/simulated_driver/entry.hpp"

#include <array>
#include <string_view>

#define SIM_OLDER_SYMBOL extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

namespace gpu_sleep::sim {
namespace {

/// The look-up as CUDA 11.3 knew it.
using OldLookUp = CUresult(CUDAAPI*)(const char*, void**, int, cuuint64_t);

/// A symbol, beside those in the table of entry points, that a name means or meant.
struct OtherSymbol {
    const char* name;
    void* function;
    int version;
};

std::span<const OtherSymbol> other_symbols();

/// Finds what `name` means to a program built for `version`; 0 asks for the newest.
CUdriverProcAddressQueryResult find(std::string_view name, int version, void** function) {
    auto result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int best = -1;
    const auto consider = [&](const char* candidate, void* pointer, int since) {
        if (name != candidate) return;
        if (result == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            result = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if ((version != 0 && since > version) || since <= best) return;
        best = since;
        *function = pointer;
        result = CU_GET_PROC_ADDRESS_SUCCESS;
    };
    for (const auto& point : entry_points()) consider(point.name, point.function, point.version);
    for (const auto& other : other_symbols()) consider(other.name, other.function, other.version);
    return result;
}

CUresult look_up(const char* name, void** function, int version, CUdriverProcAddressQueryResult* result) {
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    *function = nullptr;
    const auto found = find(name, version, function);
    if (result) *result = found;
    // The runtime asks for an empty name first, to see whether there is an answer at all.
    return found == CU_GET_PROC_ADDRESS_SUCCESS || *name == '\0' ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

} // namespace
} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

CUresult CUDAAPI cuGetProcAddress(const char* name, void** function, int version, cuuint64_t,
                                  CUdriverProcAddressQueryResult* result) {
    return call(Entry::cuGetProcAddress, [&](Call&) { return look_up(name, function, version, result); });
}

SIM_OLDER_SYMBOL cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    return cuCtxCreate(context, nullptr, flags, device);
}

SIM_OLDER_SYMBOL cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies,
                                           std::size_t* count) {
    return cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}

#undef cuEventElapsedTime
SIM_OLDER_SYMBOL cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

#undef cuGetProcAddress
SIM_OLDER_SYMBOL cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

namespace gpu_sleep::sim {
namespace {

std::span<const OtherSymbol> other_symbols() {
    static const std::array k_symbols = {
        OtherSymbol{"cuCtxCreate", reinterpret_cast<void*>(&cuCtxCreate_v2), 3020},
        OtherSymbol{"cuGraphInstantiateWithFlags", reinterpret_cast<void*>(&cuGraphInstantiate), 11040},
        OtherSymbol{"cuStreamGetCaptureInfo", reinterpret_cast<void*>(&cuStreamGetCaptureInfo_v2), 11030},
        OtherSymbol{"cuEventElapsedTime", reinterpret_cast<void*>(&::cuEventElapsedTime), 2000},
        OtherSymbol{"cuGetProcAddress", reinterpret_cast<void*>(static_cast<OldLookUp>(&::cuGetProcAddress)),
                    11030},
    };
    return k_symbols;
}

} // namespace
} // namespace gpu_sleep::sim
