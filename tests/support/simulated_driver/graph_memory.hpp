// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that graphs allocate and free: nodes of both kinds, and what becomes of their memory. All under the
// driver's lock, but for Work::run().

#pragma once

#include "support/simulated_driver/work_item.hpp"

#include <map>

namespace gpu_sleep::sim {

/// An allocation node. Its memory is there from the moment its graph is launched.
class AllocationNode : public Work {
public:
    explicit AllocationNode(std::shared_ptr<GraphMemory> memory) : memory_(std::move(memory)) {}
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    /// Errors: INVALID_VALUE (an earlier launch's is still allocated), OUT_OF_MEMORY.
    CUresult prepare(Driver& driver, bool frees_first) const override;
    void take_back(Driver& driver) const override;
    CUresult run(const Execution&) const override { return CUDA_SUCCESS; }
    [[nodiscard]] const GraphMemory& memory() const noexcept { return *memory_; }

private:
    std::shared_ptr<GraphMemory> memory_;
};

/// Freeing any allocation, in a stream's or a graph's turn. A graph's address is kept for it.
class Free : public Work {
public:
    explicit Free(CUdeviceptr address, std::shared_ptr<GraphMemory> memory = nullptr)
        : address_(address), memory_(std::move(memory)) {}
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    CUresult run(const Execution&) const override;

private:
    CUdeviceptr address_;
    std::shared_ptr<GraphMemory> memory_;
};

/// Makes the work of an allocation node of `graph`: its address is reserved. Errors: INVALID_VALUE,
/// OUT_OF_MEMORY.
CUresult make_allocation_node(Driver& driver, const Context& context, CUgraph graph, int device,
                              const std::map<int, CUmemAccess_flags>& access, std::uint64_t bytes,
                              std::shared_ptr<const AllocationNode>& node);

/// Makes the work of a node of `graph` that frees `address`. Null if no graph allocates that, or the same
/// graph frees it already.
[[nodiscard]] std::shared_ptr<const Free> make_free_node(Driver& driver, CUgraph graph, CUdeviceptr address);

/// Frees `memory` of one launch.
void release(Driver& driver, GraphMemory& memory);

/// Gives the addresses back that no node and no launch uses any more.
void forget_graph_memory(Driver& driver);

/// Takes all free memory of a device for as long as the process lives: so the real driver keeps what a launch
/// found before it fell short.
void keep_all_memory(int device);

/// Frees the memory of a context that is being destroyed.
void free_graph_memory_of(Driver& driver, const Context& context);

} // namespace gpu_sleep::sim
