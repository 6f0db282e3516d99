// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemAllocAsync and its kin: memory that is there, and goes, in a stream's turn.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/graph_memory.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/work.hpp"

namespace gpu_sleep::sim {
namespace {

/// The turn of an allocation, or of a free, in a stream. The address is good at once; only the order counts.
class Turn : public Work {
public:
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUresult run(const Execution&) const override { return CUDA_SUCCESS; }
};

CUresult capture_allocation(Driver& driver, Stream& stream, const MemoryPool& pool, std::uint64_t bytes,
                            CUdeviceptr& address) {
    if (stream.capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    std::shared_ptr<const AllocationNode> node;
    SIM_TRY(make_allocation_node(driver, stream.context, stream.capture->graph, pool.device, pool.access,
                                 bytes, node));
    address = node->memory().begin;
    return record(driver, stream, std::move(node));
}

CUresult allocate(Call& c, const std::shared_ptr<Stream>& stream, const std::shared_ptr<MemoryPool>& pool,
                  std::uint64_t bytes, CUdeviceptr* address) {
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!address || !pool || pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return capture_allocation(c.driver, *stream, *pool, bytes, *address);
    *address = 0;
    if (bytes == 0) return CUDA_SUCCESS;
    auto status = allocate_from(c.driver, pool, *stream, bytes, *address);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && pool->most_bytes == ~std::uint64_t{0}) {
        // It waits for frees under way before it says that there is no memory.
        const auto owner = find_context(c.driver, stream->context.handle);
        status = wait_for(c, *owner, all_work(*owner));
        if (status == CUDA_SUCCESS) {
            synchronize_all_pools(c.driver);
            c.driver.memory_pools.for_each([&](CUmemoryPool, MemoryPool& other) {
                if (other.device == pool->device) trim(c.driver, other, 0);
            });
            status = allocate_from(c.driver, pool, *stream, bytes, *address);
        }
    }
    if (status != CUDA_SUCCESS) return status;
    status = submit(c, *stream, std::make_shared<Turn>());
    if (status != CUDA_SUCCESS) free_block(c.driver, *address);
    return status;
}

CUresult capture_free(Driver& driver, Stream& stream, CUdeviceptr address) {
    if (stream.capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    auto node = make_free_node(driver, stream.capture->graph, address);
    return node ? record(driver, stream, std::move(node)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult free_in_turn(Call& c, Stream& stream, CUdeviceptr address) {
    if (stream.capture) return capture_free(c.driver, stream, address);
    if (const auto graph = c.driver.graph_memory.find(address); graph != c.driver.graph_memory.end()) {
        if (graph->second->live == 0 || graph->second->freed_in_graph) return CUDA_ERROR_INVALID_VALUE;
        return submit(c, stream, std::make_shared<Free>(address, graph->second));
    }
    const auto block = c.driver.blocks.find(address);
    if (block == c.driver.blocks.end()) {
        // A plain allocation may be freed in a stream's turn too.
        const auto plain = c.driver.plain.find(address);
        const bool may_be =
            plain != c.driver.plain.end() && plain->second.kind == PlainAllocation::Kind::allocated;
        return may_be ? submit(c, stream, std::make_shared<Free>(address)) : CUDA_ERROR_INVALID_VALUE;
    }
    if (block->second.state != PoolBlock::State::live) return CUDA_ERROR_INVALID_VALUE;
    Submitted submitted;
    const auto status = submit(c, stream, std::make_shared<Turn>(), &submitted);
    if (status == CUDA_SUCCESS) free_in_order(c.driver, address, submitted.ticket);
    return status;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(queued, 11020)
cuMemAllocAsync(Call& c, Context& context, CUdeviceptr* address, std::size_t bytes, CUstream stream_handle) {
    const auto stream = find_stream(c.driver, context, stream_handle);
    const auto device = static_cast<std::size_t>(stream ? stream->context.device : context.device);
    return allocate(c, stream, c.driver.current_pools[device], bytes, address);
}

SIM_ENTRY(queued, 11020)
cuMemAllocFromPoolAsync(Call& c, Context& context, CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                        CUstream stream_handle) {
    return allocate(c, find_stream(c.driver, context, stream_handle), c.driver.memory_pools.find(pool), bytes,
                    address);
}

SIM_ENTRY(queued, 11020)
cuMemFreeAsync(Call& c, Context& context, CUdeviceptr address, CUstream stream_handle) {
    SIM_FIND(stream, find_stream(c.driver, context, stream_handle), CUDA_ERROR_INVALID_HANDLE);
    return address == 0 ? CUDA_SUCCESS : free_in_turn(c, *stream, address);
}
