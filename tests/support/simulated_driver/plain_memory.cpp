// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemAlloc and its kin, and what can be asked about an address.

#include "support/simulated_driver/plain_memory.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/entry.hpp"
#include "support/simulated_driver/settings.hpp"

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_smallest_page = 4096;
constexpr std::uint64_t k_pitch_alignment = 512;

CUresult allocate(Driver& driver, const Context& context, std::uint64_t bytes, CUdeviceptr& address) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > settings().memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto reserved = round_up(bytes, k_smallest_page);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device};
    const auto memory = Physical::create(driver.pool(context.device), reserved, properties);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    std::uint64_t begin = 0;
    if (const auto status = driver.space.reserve(reserved, k_smallest_page, 0, begin); status != CUDA_SUCCESS)
        return status;
    auto status = driver.space.map(begin, memory, true);
    if (status == CUDA_SUCCESS)
        status = driver.space.set_access(begin, reserved, std::uint32_t{1} << context.device,
                                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (status != CUDA_SUCCESS) {
        driver.space.unmap(begin, reserved);
        driver.space.free_reservation(begin, reserved);
        return status;
    }
    driver.plain[begin] = {bytes, reserved, &context};
    driver.plain_bytes += bytes;
    address = begin;
    return CUDA_SUCCESS;
}

void free(Driver& driver, std::map<std::uint64_t, PlainAllocation>::iterator it) {
    const auto& [begin, allocation] = *it;
    driver.space.unmap(begin, allocation.reserved);
    driver.space.free_reservation(begin, allocation.reserved);
    driver.plain_bytes -= allocation.bytes;
    driver.plain.erase(it);
}

/// The mapping or page-locked range that an address lies in, as one thing to ask about.
struct Found {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    const Mapping* mapping = nullptr; ///< null for host memory
    CUcontext context = nullptr;
    int device = 0;
    std::uint64_t id = 0;
};

bool find(const Driver& driver, CUdeviceptr address, Found& found) {
    if (const auto* mapping = driver.space.find(address)) {
        found = {mapping->begin, mapping->bytes, mapping, nullptr, mapping->memory->device(), mapping->since};
        if (const auto plain = driver.plain.find(mapping->begin); plain != driver.plain.end()) {
            found.bytes = plain->second.bytes;
            found.context = plain->second.context->handle;
        }
        return address - found.begin < found.bytes;
    }
    const auto* range = driver.host.find(address);
    if (!range) return false;
    found = {range->begin, range->bytes, nullptr, range->owner->handle, range->owner->device, range->since};
    return true;
}

template <class T>
CUresult answer(void* data, T value) {
    *static_cast<T*>(data) = value;
    return CUDA_SUCCESS;
}

CUresult get_attribute(const Found& found, CUpointer_attribute attribute, CUdeviceptr address, void* data) {
    const bool on_device = found.mapping != nullptr;
    const bool shareable = on_device && found.mapping->memory->properties().requestedHandleTypes ==
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return answer(data, found.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
        const auto type = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return answer(data, static_cast<unsigned>(type));
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (on_device) return CUDA_ERROR_INVALID_VALUE;
        return answer(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return answer(data, 0U);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer(data, static_cast<unsigned long long>(found.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer(data, 0U);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer(data, found.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return answer(data, 0U);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return answer(data, static_cast<CUdeviceptr>(found.begin));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return answer(data, static_cast<std::size_t>(found.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED: return answer(data, 1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: {
        const auto types = shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
        return answer(data, static_cast<unsigned long long>(types));
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return answer(data, CUmemoryPool{nullptr});
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

} // namespace

void free_plain_memory_of(Driver& driver, const Context& context) {
    for (auto it = driver.plain.begin(); it != driver.plain.end();) {
        const auto current = it++;
        if (current->second.context == &context) free(driver, current);
    }
}

} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

CUresult CUDAAPI cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
    return call_in_context(Entry::cuMemGetInfo, [&](Call&, Context& context) {
        if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
        *free_bytes = DeviceBudget::instance().free_bytes(context.device);
        *total_bytes = settings().memory_bytes;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    return call_in_context(Entry::cuMemAlloc, [&](Call& c, Context& context) {
        return address ? allocate(c.driver, context, bytes, *address) : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                 std::size_t height, unsigned element_bytes) {
    return call_in_context(Entry::cuMemAllocPitch, [&](Call& c, Context& context) {
        const bool valid_element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
        if (!address || !pitch || !valid_element) return CUDA_ERROR_INVALID_VALUE;
        *pitch = gpu_sleep::round_up(width, k_pitch_alignment);
        return allocate(c.driver, context, *pitch * height, *address);
    });
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
    return call_in_context(Entry::cuMemFree, [&](Call& c, Context& context) {
        if (address == 0) return CUDA_SUCCESS;
        if (!c.driver.plain.contains(address)) return CUDA_ERROR_INVALID_VALUE;
        // Like the real one, it waits for work that may still use the memory.
        if (const auto status = wait_for(c, context, all_work(context)); status != CUDA_SUCCESS)
            return status;
        const auto found = c.driver.plain.find(address);
        if (found == c.driver.plain.end()) return CUDA_ERROR_INVALID_VALUE;
        gpu_sleep::sim::free(c.driver, found);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address) {
    return call_in_context(Entry::cuMemGetAddressRange, [&](Call& c, Context&) {
        Found found;
        if (!find(c.driver, address, found) || !found.mapping) return CUDA_ERROR_NOT_FOUND;
        if (begin) *begin = found.begin;
        if (bytes) *bytes = found.bytes;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    return call(Entry::cuPointerGetAttribute, [&](Call& c) {
        Found found;
        if (!data || !find(c.driver, address, found)) return CUDA_ERROR_INVALID_VALUE;
        return get_attribute(found, attribute, address, data);
    });
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                        CUdeviceptr address) {
    return call(Entry::cuPointerGetAttributes, [&](Call& c) {
        if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
        // An address that nobody knows is no error here: the answers are empty.
        Found found;
        const bool known = find(c.driver, address, found);
        for (unsigned i = 0; i < count; ++i) {
            if (known)
                get_attribute(found, attributes[i], address, data[i]);
            else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
                answer(data[i], -2);
            else if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
                answer(data[i], 0U);
        }
        return CUDA_SUCCESS;
    });
}
