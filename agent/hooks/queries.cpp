// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of questions about addresses. They never wait and never fail because something sleeps: what the driver
// does not know, or knows of the range and not of the allocation, we know.

#include "caught/caught.hpp"
#include "hooks/driver_table.hpp"

#include <cstdint>

namespace gpu_sleep::hooks::own {

using agent::caught::Known;

namespace {

template <class Value>
CUresult answer(void* data, Value value) {
    *static_cast<Value*>(data) = value;
    return CUDA_SUCCESS;
}

/// What only we know: the driver would speak of a range, or of nobody's context.
std::optional<CUresult> answer_for_allocation(void* data, CUpointer_attribute attribute, const Known& known) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return answer(data, known.context);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return answer(data, known.address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return answer(data, known.bytes);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer(data, known.id);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return answer(data, known.pool);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return answer(data, false);
    default: return std::nullopt;
    }
}

/// What the driver would say of memory that is awake.
CUresult answer_for_sleeping(void* data, CUpointer_attribute attribute, const Known& known, CUdeviceptr address) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return answer(data, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer(data, address);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer(data, known.device);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer(data, false);
    case CU_POINTER_ATTRIBUTE_MAPPED: return answer(data, true);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return answer(data, false);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return answer(data, std::uint64_t{0});
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return answer(data, true);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return answer(data, static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return answer(data, known.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return answer(data, known.address);
    default:
        return answer_for_allocation(data, attribute, known).value_or(CUDA_ERROR_INVALID_VALUE);
    }
}

CUresult ask(void* data, CUpointer_attribute attribute, const Known& known, CUdeviceptr address) {
    if (!known.is_virtual)
        if (const auto ours = answer_for_allocation(data, attribute, known)) return *ours;
    const auto status = real<Entry::cuPointerGetAttribute>()(data, attribute, address);
    return status == CUDA_SUCCESS ? status : answer_for_sleeping(data, attribute, known, address);
}

} // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    const auto known = catches() && data ? agent::caught::find(address) : std::nullopt;
    if (known) return ask(data, attribute, *known, address);
    return real<Entry::cuPointerGetAttribute>()(data, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
    const auto known = catches() && attributes && data ? agent::caught::find(address) : std::nullopt;
    const auto status = real<Entry::cuPointerGetAttributes>()(count, attributes, data, address);
    if (!known) return status;
    // The driver's own answers for what has none are set already: zero or null.
    for (unsigned i = 0; i < count; ++i)
        if (data[i]) static_cast<void>(ask(data[i], attributes[i], *known, address));
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
    const auto known = catches() ? agent::caught::find(address) : std::nullopt;
    if (!known) return real<Entry::cuMemGetAddressRange_v2>()(base, bytes, address);
    if (known->is_virtual) {
        const auto status = real<Entry::cuMemGetAddressRange_v2>()(base, bytes, address);
        if (status == CUDA_SUCCESS) return status;
    }
    if (base) *base = known->address;
    if (bytes) *bytes = known->bytes;
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
    return real<Entry::cuIpcGetMemHandle>()(handle, address);
}

} // namespace gpu_sleep::hooks::own
