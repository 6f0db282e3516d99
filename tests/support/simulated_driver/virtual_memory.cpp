// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Virtual memory management: reserving, creating, mapping, granting, sharing.

#include "support/simulated_driver/entry.hpp"

#include "base/fd.hpp"
#include "support/simulated_driver/settings.hpp"

#include <algorithm>
#include <bit>
#include <set>

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_granularity = std::uint64_t{2} << 20;

bool is_aligned(std::uint64_t value) noexcept {
    return value % k_granularity == 0;
}

bool is_span(std::uint64_t begin, std::uint64_t bytes) noexcept {
    return begin != 0 && bytes != 0 && is_aligned(begin) && is_aligned(bytes);
}

/// The pool that `location` means, or null.
PhysicalPool* pool_of(Driver& driver, const CUmemLocation& location) {
    switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return location.id >= 0 && location.id < driver.device_count() ? &driver.pool(location.id) : nullptr;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return settings().maps_host_memory ? &driver.host_pool : nullptr;
    default: return nullptr;
    }
}

CUresult check_properties(Driver& driver, const CUmemAllocationProp* properties) {
    if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if ((properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    return pool_of(driver, properties->location) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/// A new handle, which does not count as the memory's name.
CUmemGenericAllocationHandle make_handle(Driver& driver, const std::shared_ptr<Physical>& memory) {
    const auto allocation = std::make_shared<Allocation>();
    allocation->memory = memory;
    return driver.allocations.insert(allocation);
}

CUmemGenericAllocationHandle name_memory(Driver& driver, const std::shared_ptr<Physical>& memory) {
    return memory->handle = make_handle(driver, memory);
}

/// One more reference to what a mapping shows: by the handle that it was made with, by the one that names the
/// memory, or by a new one.
CUmemGenericAllocationHandle retain(Driver& driver, const Mapping& mapping) {
    for (const auto handle : {mapping.handle, mapping.memory->handle}) {
        const auto found = driver.allocations.find(handle);
        if (!found) continue;
        ++found->references;
        return handle;
    }
    return name_memory(driver, mapping.memory);
}

/// The devices that access descriptors mean, one bit each; the host, which needs no grant here, none.
CUresult devices_of(const Driver& driver, const CUmemAccessDesc& description, std::uint32_t& devices) {
    const auto flags = description.flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    devices = 0;
    if (description.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
    if (description.location.id < 0 || description.location.id >= driver.device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    devices = std::uint32_t{1} << description.location.id;
    return CUDA_SUCCESS;
}

/// Memory of this process that was exported as `fd`, or null.
std::shared_ptr<Physical> find_exported(const Driver& driver, int fd) {
    std::shared_ptr<Physical> found;
    driver.allocations.for_each([&](auto, const Allocation& allocation) {
        if (!found && allocation.memory->is_exported_as(fd)) found = allocation.memory;
    });
    return found;
}

CUresult move_out(Driver& driver, Physical& memory) {
    return memory.move_out() ? driver.space.remap(memory) : CUDA_ERROR_OPERATING_SYSTEM;
}

} // namespace

CUresult share(Driver& driver, Physical& memory) {
    return memory.is_shared() ? CUDA_SUCCESS : move_out(driver, memory);
}

void part_from_others(Driver& driver) {
    std::set<std::shared_ptr<Physical>> exported;
    const auto collect = [&](const std::shared_ptr<Physical>& memory) {
        if (memory->is_shared() && !memory->is_imported()) exported.insert(memory);
    };
    driver.space.for_each_memory(collect);
    driver.allocations.for_each([&](auto, const Allocation& allocation) { collect(allocation.memory); });
    for (const auto& memory : exported) move_out(driver, *memory);
}

} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 10020)
cuMemGetAllocationGranularity(Call& c, std::size_t* granularity, const CUmemAllocationProp* properties,
                              CUmemAllocationGranularity_flags) {
    if (!granularity) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_properties(c.driver, properties));
    *granularity = k_granularity;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020)
cuMemAddressReserve(Call& c, CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr hint,
                    unsigned long long flags) {
    if (!address || flags != 0 || bytes == 0 || !is_aligned(bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (alignment != 0 && !std::has_single_bit(alignment)) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t begin = 0;
    const auto status = c.driver.space.reserve(bytes, std::max<std::uint64_t>(alignment, k_granularity), hint,
                                               Origin::program, begin);
    if (status == CUDA_SUCCESS) *address = begin;
    return status;
}

SIM_ENTRY(safe, 10020) cuMemAddressFree(Call& c, CUdeviceptr address, std::size_t bytes) {
    if (c.driver.space.is_allocation(address)) return CUDA_ERROR_INVALID_VALUE;
    return c.driver.space.free_reservation(address, bytes);
}

SIM_ENTRY(safe, 10020)
cuMemCreate(Call& c, CUmemGenericAllocationHandle* handle, std::size_t bytes,
            const CUmemAllocationProp* properties, unsigned long long flags) {
    if (!handle || flags != 0 || bytes == 0 || !is_aligned(bytes)) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_properties(c.driver, properties));
    SIM_FIND(memory, Physical::create(*pool_of(c.driver, properties->location), bytes, *properties),
             CUDA_ERROR_OUT_OF_MEMORY);
    *handle = name_memory(c.driver, memory);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020) cuMemRelease(Call& c, CUmemGenericAllocationHandle handle) {
    SIM_FIND(allocation, c.driver.allocations.find(handle), CUDA_ERROR_INVALID_VALUE);
    if (--allocation->references > 0) return CUDA_SUCCESS;
    if (allocation->memory->handle == handle) allocation->memory->handle = 0;
    c.driver.allocations.remove(handle);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11000)
cuMemRetainAllocationHandle(Call& c, CUmemGenericAllocationHandle* handle, void* address) {
    const auto* mapping = c.driver.space.find(reinterpret_cast<std::uint64_t>(address));
    if (!handle || !mapping || mapping->origin != Origin::program) return CUDA_ERROR_INVALID_VALUE;
    *handle = retain(c.driver, *mapping);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020)
cuMemMap(Call& c, CUdeviceptr address, std::size_t bytes, std::size_t offset,
         CUmemGenericAllocationHandle handle, unsigned long long flags) {
    const auto allocation = c.driver.allocations.find(handle);
    if (!allocation || flags != 0 || offset != 0 || !is_span(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (bytes != allocation->memory->bytes()) return CUDA_ERROR_INVALID_VALUE;
    if (c.driver.space.is_allocation(address)) return CUDA_ERROR_INVALID_VALUE;
    return c.driver.space.map(address, allocation->memory, Origin::program, handle);
}

SIM_ENTRY(safe, 11010) cuMemMapArrayAsync(Call& c, CUarrayMapInfo* maps, unsigned count, CUstream) {
    // there are no arrays, but handles are looked for
    for (unsigned i = 0; i < count; ++i)
        if (!c.driver.allocations.find(maps[i].memHandle.memHandle)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020) cuMemUnmap(Call& c, CUdeviceptr address, std::size_t bytes) {
    if (!is_span(address, bytes) || c.driver.space.is_allocation(address)) return CUDA_ERROR_INVALID_VALUE;
    return c.driver.space.unmap(address, bytes);
}

SIM_ENTRY(safe, 10020)
cuMemSetAccess(Call& c, CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* descriptions,
               std::size_t count) {
    if (!is_span(address, bytes) || !descriptions || count == 0 || c.driver.space.is_allocation(address))
        return CUDA_ERROR_INVALID_VALUE;
    std::uint32_t devices = 0;
    for (std::size_t i = 0; i < count; ++i) SIM_TRY(devices_of(c.driver, descriptions[i], devices));
    for (std::size_t i = 0; i < count; ++i) {
        devices_of(c.driver, descriptions[i], devices);
        SIM_TRY(c.driver.space.set_access(address, bytes, devices, descriptions[i].flags));
    }
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020)
cuMemGetAccess(Call& c, unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
    const auto* mapping = c.driver.space.find(address);
    if (!flags || !location || !mapping || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!c.driver.has_device(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    if (mapping->origin != Origin::program) {
        *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; // the real one says so of all but virtual memory
        return CUDA_SUCCESS;
    }
    const auto bit = std::uint32_t{1} << location->id;
    *flags = (mapping->writers & bit) != 0   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : (mapping->readers & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                             : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020)
cuMemGetAllocationPropertiesFromHandle(Call& c, CUmemAllocationProp* properties,
                                       CUmemGenericAllocationHandle handle) {
    const auto allocation = c.driver.allocations.find(handle);
    if (!properties || !allocation) return CUDA_ERROR_INVALID_VALUE;
    *properties = allocation->memory->properties();
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020)
cuMemExportToShareableHandle(Call& c, void* shareable, CUmemGenericAllocationHandle handle,
                             CUmemAllocationHandleType type, unsigned long long flags) {
    const auto allocation = c.driver.allocations.find(handle);
    if (!shareable || !allocation || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto requested = allocation->memory->properties().requestedHandleTypes;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (requested & type) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation->memory->is_imported()) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(share(c.driver, *allocation->memory));
    gpu_sleep::UniqueFd fd = allocation->memory->export_fd();
    if (!fd) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareable) = fd.release();
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10020)
cuMemImportFromShareableHandle(Call& c, CUmemGenericAllocationHandle* handle, void* shareable,
                               CUmemAllocationHandleType type) {
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    const auto fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    if (const auto own = find_exported(c.driver, fd)) {
        *handle = make_handle(c.driver, own); // not the one that was exported
        return CUDA_SUCCESS;
    }
    SIM_FIND(imported, Physical::import(fd), CUDA_ERROR_UNKNOWN);
    if (imported->properties().location.id >= c.driver.device_count()) return CUDA_ERROR_INVALID_VALUE;
    *handle = name_memory(c.driver, imported);
    return CUDA_SUCCESS;
}
