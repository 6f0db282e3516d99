// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Numbers that a stream sets in memory or waits for, several at once, as work.

#pragma once

#include "support/simulated_driver/work.hpp"

#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace gpu_sleep::sim {

class ValueOperations : public Work {
public:
    ValueOperations(CUcontext context, std::span<const CUstreamBatchMemOpParams> operations,
                    std::vector<std::shared_ptr<const Work>> parts)
        : context_(context), operations_(operations.begin(), operations.end()), parts_(std::move(parts)) {}

    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUresult run(const Execution& execution) const override;

    /// As cuGraphBatchMemOpNodeGetParams shows it: the array is the node's own.
    [[nodiscard]] CUDA_BATCH_MEM_OP_NODE_PARAMS node_parameters() const noexcept {
        return {context_, static_cast<unsigned>(operations_.size()), operations_.data(), 0};
    }

private:
    CUcontext context_;
    mutable std::vector<CUstreamBatchMemOpParams> operations_;
    std::vector<std::shared_ptr<const Work>> parts_;
};

/// Makes the work of a node or of cuStreamBatchMemOp. Errors: INVALID_VALUE, NOT_SUPPORTED (barriers).
CUresult make_operations(const Driver& driver, const Context& context,
                         std::span<const CUstreamBatchMemOpParams> operations,
                         std::shared_ptr<const Work>& work);

} // namespace gpu_sleep::sim
