// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemAlloc and its kin, and what can be asked about an address.

#include "support/simulated_driver/plain_memory.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/checkpoint_gate.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/graph_memory.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/work.hpp"

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_smallest_page = 4096;
constexpr std::uint64_t k_pitch_alignment = 512;

CUresult allocate(Driver& driver, const Context& context, std::uint64_t bytes, PlainAllocation::Kind kind,
                  CUdeviceptr& address) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > settings().memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    auto memory = Physical::create(driver.pool(context.device), round_up(bytes, k_smallest_page));
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    return add_plain_memory(driver, context, std::move(memory), bytes, kind, address);
}

/// The mapping or page-locked range that an address lies in, as one thing to ask about.
struct Found {
    std::uint64_t begin = 0, bytes = 0;
    const Mapping* mapping = nullptr; ///< null for host memory
    CUcontext context = nullptr;
    int device = 0;
    std::uint64_t id = 0;
    const PlainAllocation* plain = nullptr; ///< of which it is part, if it is
    CUmemoryPool pool = nullptr;            ///< from which it was taken, if it was
};

/// Adds what is known of the allocation that `found` is the mapping of; false if that was freed.
bool add_allocation(const Driver& driver, Found& found) {
    if (const auto plain = driver.plain.find(found.begin); plain != driver.plain.end()) {
        found.plain = &plain->second;
        found.bytes = plain->second.bytes;
        found.context = plain->second.context->handle;
    } else if (const auto block = driver.blocks.find(found.begin); block != driver.blocks.end()) {
        if (is_freed(block->second)) return false;
        found.id = block->second.id;
        found.bytes = block->second.bytes;
        found.pool = block->second.pool->handle;
    } else if (const auto graph = driver.graph_memory.find(found.begin); graph != driver.graph_memory.end()) {
        found.bytes = graph->second->bytes;
    }
    return true;
}

/// Whether a graph allocates the memory and frees it again: nobody outside is told of it.
bool is_within_graph(const Driver& driver, std::uint64_t begin) {
    const auto graph = driver.graph_memory.find(begin);
    return graph != driver.graph_memory.end() && graph->second->freed_in_graph;
}

bool find(const Driver& driver, CUdeviceptr address, Found& found) {
    if (const auto* mapping = driver.space.find(address)) {
        if (is_within_graph(driver, mapping->begin)) return false;
        found = {mapping->begin, mapping->bytes, mapping, nullptr, mapping->memory->device(), mapping->since};
        return add_allocation(driver, found) && address - found.begin < found.bytes;
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
    using Kind = PlainAllocation::Kind;
    const bool on_device = found.mapping != nullptr;
    const bool managed = found.plain && found.plain->kind == Kind::managed;
    const bool legacy_ipc = found.plain && found.plain->kind == Kind::allocated;
    const bool shareable = on_device && found.mapping->memory->properties().requestedHandleTypes ==
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return answer(data, found.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
        const bool is_gpus =
            on_device && found.mapping->memory->properties().location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        const auto type = is_gpus ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return answer(data, static_cast<unsigned>(type));
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return answer(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (on_device && !managed) return CUDA_ERROR_INVALID_VALUE;
        return answer(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return answer(data, 0U);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer(data, static_cast<unsigned long long>(found.id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer(data, managed ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer(data, found.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return answer(data, legacy_ipc ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return answer(data, static_cast<CUdeviceptr>(found.begin));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return answer(data, static_cast<std::size_t>(found.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED: return answer(data, 1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: {
        const auto types = shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
        return answer(data, static_cast<unsigned long long>(types));
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return answer(data, found.pool);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/// Whether a span lies in one managed allocation.
bool is_managed(const Driver& driver, CUdeviceptr address, std::uint64_t bytes) {
    Found found;
    return find(driver, address, found) && found.plain && bytes > 0 &&
           found.plain->kind == PlainAllocation::Kind::managed &&
           bytes <= found.bytes - (address - found.begin);
}

/// Frees memory that was allocated in a stream's turn, now: for that, cuMemFree waits for nothing.
CUresult free_unordered(Driver& driver, CUdeviceptr address) {
    if (const auto graph = driver.graph_memory.find(address); graph != driver.graph_memory.end()) {
        if (graph->second->live == 0 || graph->second->freed_in_graph) return CUDA_ERROR_INVALID_VALUE;
        release(driver, *graph->second);
        return CUDA_SUCCESS;
    }
    const auto block = driver.blocks.find(address);
    if (block == driver.blocks.end() || block->second.state != PoolBlock::State::live)
        return CUDA_ERROR_INVALID_VALUE;
    free_block(driver, address);
    return CUDA_SUCCESS;
}

/// The work for which a free waits: that of all contexts of the device; managed memory is of every device.
std::vector<Ticket> work_on(const Driver& driver, const PlainAllocation& plain) {
    std::vector<Ticket> work;
    driver.contexts.for_each([&](CUcontext, const Context& context) {
        if (plain.kind != PlainAllocation::Kind::managed && context.device != plain.context->device) return;
        for (auto& ticket : all_work(context)) work.push_back(std::move(ticket));
    });
    return work;
}

bool is_place(const Driver& driver, const CUmemLocation& location) {
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return location.type != CU_MEM_LOCATION_TYPE_INVALID;
    return location.id == CU_DEVICE_CPU || (location.id >= 0 && location.id < driver.device_count());
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 3020)
cuMemGetInfo(Call&, Context& context, std::size_t* free_bytes, std::size_t* total_bytes) {
    if (!free_bytes || !total_bytes) return CUDA_ERROR_INVALID_VALUE;
    *free_bytes = DeviceBudget::instance().free_bytes(context.device);
    *total_bytes = settings().memory_bytes;
    return CUDA_SUCCESS;
}

SIM_ENTRY(unsafe, 3020) cuMemAlloc(Call& c, Context& context, CUdeviceptr* address, std::size_t bytes) {
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    return allocate(c.driver, context, bytes, PlainAllocation::Kind::allocated, *address);
}

SIM_ENTRY(unsafe, 6000)
cuMemAllocManaged(Call& c, Context& context, CUdeviceptr* address, std::size_t bytes, unsigned flags) {
    if (!address || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(c.driver, context, bytes, PlainAllocation::Kind::managed, *address);
}

SIM_ENTRY(safe, 12020)
cuMemAdvise(Call& c, CUdeviceptr address, std::size_t bytes, CUmem_advise, CUmemLocation location) {
    const bool valid = is_managed(c.driver, address, bytes) && is_place(c.driver, location);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_ENTRY(queued, 12020)
cuMemPrefetchAsync(Call& c, Context& context, CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                   unsigned flags, CUstream stream_handle) {
    SIM_FIND(stream, find_stream(c.driver, context, stream_handle), CUDA_ERROR_INVALID_HANDLE);
    if (flags != 0 || !is_managed(c.driver, address, bytes) || !is_place(c.driver, location))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return break_capture(*stream);
    SIM_TRY(refuse_implicit_dependency(c.driver, *stream));
    enqueue(*stream, {}, nullptr);
    return CUDA_SUCCESS;
}

SIM_ENTRY(unsafe, 3020)
cuMemAllocPitch(Call& c, Context& context, CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                std::size_t height, unsigned element_bytes) {
    const bool valid_element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
    if (!address || !pitch || !valid_element) return CUDA_ERROR_INVALID_VALUE;
    *pitch = gpu_sleep::round_up(width, k_pitch_alignment);
    return allocate(c.driver, context, *pitch * height, PlainAllocation::Kind::allocated, *address);
}

// Without a current context, too.
SIM_ENTRY(unsafe, 3020) cuMemFree(Call& c, CUdeviceptr address) {
    std::shared_ptr<Context> context;
    const auto entered = current_context(c.driver, context);
    if (entered != CUDA_SUCCESS && entered != CUDA_ERROR_INVALID_CONTEXT) return entered;
    if (address == 0) return CUDA_SUCCESS;
    const auto plain = c.driver.plain.find(address);
    if (plain == c.driver.plain.end()) return free_unordered(c.driver, address);
    const auto kind = plain->second.kind;
    if (kind == PlainAllocation::Kind::imported || kind == PlainAllocation::Kind::array)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context) context = find_context(c.driver, plain->second.context->handle);
    // Like the real one, it waits for work that may still use the memory.
    SIM_TRY(wait_for(c, *context, work_on(c.driver, plain->second)));
    if (!c.driver.plain.contains(address)) return CUDA_ERROR_INVALID_VALUE;
    free_plain_memory(c.driver, address);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 3020)
cuMemGetAddressRange(Call& c, Context&, CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address) {
    Found found;
    if (!find(c.driver, address, found) || !found.mapping) return CUDA_ERROR_NOT_FOUND;
    if (begin) *begin = found.begin;
    if (bytes) *bytes = found.bytes;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000)
cuPointerGetAttribute(Call& c, void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    Found found;
    if (!data || !find(c.driver, address, found)) return CUDA_ERROR_INVALID_VALUE;
    return get_attribute(found, attribute, address, data);
}

SIM_ENTRY(safe, 7000)
cuPointerGetAttributes(Call& c, unsigned count, CUpointer_attribute* attributes, void** data,
                       CUdeviceptr address) {
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
}

SIM_ENTRY(safe, 6000)
cuPointerSetAttribute(Call& c, const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
    Found found;
    const bool is_right = value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    return is_right && find(c.driver, address, found) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
