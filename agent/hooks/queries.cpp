// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of questions about addresses. They never wait and never fail because something sleeps: what the
// driver does not know, or knows of the range and not of the allocation, we know.

#include "hooks/driver_table.hpp"
#include "intercepted/memory.hpp"
#include "intercepted/virtual_memory.hpp"
#include "registry/registry.hpp"

namespace gpu_sleep::hooks::own {

using intercepted::Allocation;

namespace {

// The driver writes truth values as four bytes.
constexpr unsigned k_true = 1;
constexpr unsigned k_false = 0;

template <class Value>
CUresult answer(void* data, Value value) {
    *static_cast<Value*>(data) = value;
    return CUDA_SUCCESS;
}

/// Answers for an intercepted allocation what the driver does not know: it would answer for the whole range,
/// or for no context.
std::optional<CUresult> answer_for_allocation(void* data, CUpointer_attribute attribute,
                                              const Allocation& known) {
    switch (attribute) {
    // Memory of pools belongs to no context.
    case CU_POINTER_ATTRIBUTE_CONTEXT: return answer(data, known.pool ? nullptr : known.context);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return answer(data, known.address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return answer(data, known.bytes);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer(data, known.id);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return answer(data, known.pool);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return answer(data, known.handle_types);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return answer(data, known.pool || known.is_virtual ? k_false : k_true);
    default: return std::nullopt;
    }
}

/// Answers for sleeping memory as the driver does for memory that is awake.
CUresult answer_for_sleeping(void* data, CUpointer_attribute attribute, const Allocation& known,
                             CUdeviceptr address) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer(data, address);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer(data, k_false);
    case CU_POINTER_ATTRIBUTE_MAPPED: return answer(data, k_true);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return answer(data, k_false);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return answer(data, k_true);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return answer(data, static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return answer(data, known.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return answer(data, known.address);
    default: return answer_for_allocation(data, attribute, known).value_or(CUDA_ERROR_INVALID_VALUE);
    }
}

CUresult ask(void* data, CUpointer_attribute attribute, const Allocation& known, CUdeviceptr address) {
    if (!known.is_virtual || known.is_own)
        if (const auto ours = answer_for_allocation(data, attribute, known)) return *ours;
    const auto status = real<Entry::cuPointerGetAttribute>()(data, attribute, address);
    // So the driver speaks of an address that shows nothing: it sleeps.
    const bool sleeps = status == CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS && !sleeps) return status;
    switch (attribute) {
    // Memory that has moved to host memory is the GPU's all the same: the program must not read it in place.
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return answer(data, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer(data, known.device);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: answer(data, nullptr); return CUDA_ERROR_INVALID_VALUE;
    default: return sleeps ? answer_for_sleeping(data, attribute, known, address) : status;
    }
}

/// Whether the address, which is in no allocation, is one that the driver knows only because it lies in a
/// range of ours that is awake: the program asked for less.
bool is_beyond(CUdeviceptr address) {
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    return intercepts() && real<Entry::cuMemGetAddressRange_v2>()(&begin, &bytes, address) == CUDA_SUCCESS &&
           registry::books().allocations.has_ours_in(begin, bytes);
}

} // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    const auto known = intercepts() && data ? registry::books().allocations.find(address) : std::nullopt;
    if (known) return ask(data, attribute, *known, address);
    if (is_beyond(address)) return CUDA_ERROR_INVALID_VALUE;
    return real<Entry::cuPointerGetAttribute>()(data, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
    constexpr CUdeviceptr k_nobodys = 1; // of which the driver gives the answers for what nobody knows
    const auto known =
        intercepts() && attributes && data ? registry::books().allocations.find(address) : std::nullopt;
    if (!known && is_beyond(address)) address = k_nobodys;
    const auto status = real<Entry::cuPointerGetAttributes>()(count, attributes, data, address);
    if (!known) return status;
    // The driver's own answers for what has none are set already: zero or null.
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_INVALID_VALUE) return status;
    for (unsigned i = 0; i < count; ++i)
        if (data[i]) static_cast<void>(ask(data[i], attributes[i], *known, address));
    return CUDA_SUCCESS;
}

// Synchronous operations are asked for before memory is given to a network card, which then holds the memory
// itself and not its address.
CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
    const auto status = real<Entry::cuPointerSetAttribute>()(value, attribute, address);
    const bool is_set = status == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
                        *static_cast<const unsigned*>(value) != 0;
    if (is_set && intercepts()) intercepted::make_span_stay(address, 1, "registered with another device");
    return status;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
    const auto known = intercepts() ? registry::books().allocations.find(address) : std::nullopt;
    if (!known && is_beyond(address)) return CUDA_ERROR_NOT_FOUND;
    const auto status = real<Entry::cuMemGetAddressRange_v2>()(base, bytes, address);
    // So the driver speaks of an address that shows nothing. Any other error would come awake as well.
    const bool sleeps = status == CUDA_ERROR_NOT_FOUND || status == CUDA_ERROR_INVALID_VALUE;
    const bool is_right = status == CUDA_SUCCESS && known && known->is_virtual && !known->is_own;
    if (!known || is_right || (status != CUDA_SUCCESS && !sleeps)) return status;
    if (base) *base = known->address;
    if (bytes) *bytes = known->bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
    const auto known =
        intercepts() && flags && location ? registry::books().allocations.find(address) : std::nullopt;
    if (!known && is_beyond(address)) return CUDA_ERROR_INVALID_VALUE;
    const auto status = real<Entry::cuMemGetAccess>()(flags, location, address);
    return known ? intercepted::access_of(*known, *location, status, *flags) : status;
}

} // namespace gpu_sleep::hooks::own
