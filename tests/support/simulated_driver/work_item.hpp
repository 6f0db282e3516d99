// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a stream runs, or a graph for it.

#pragma once

#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/entry_points.hpp"

#include <atomic>

namespace gpu_sleep::sim {

/// The circumstances in which work runs.
struct Execution {
    Context& context;
    Entry entry;            ///< the call that submitted it
    Generation space_as_of; ///< device memory mapped later than this is not what the work was given
    Generation host_as_of;  ///< the same for page-locked host memory
    const std::atomic<bool>& cancelled;
};

/// A kernel, a copy, a memset, a host function. Immutable: a graph runs it many times.
class Work {
public:
    virtual ~Work() = default;
    [[nodiscard]] virtual CUgraphNodeType type() const noexcept = 0;
    /// Called before it is submitted to run, with the driver's lock: takes what it needs, or says why it
    /// cannot. `frees_first`: what an earlier run left allocated is free. take_back() undoes it.
    virtual CUresult prepare(Driver&, bool /*frees_first*/) const { return CUDA_SUCCESS; }
    virtual void take_back(Driver&) const {}
    /// Called on the stream's thread without locks. What it returns becomes the context's error.
    virtual CUresult run(const Execution& execution) const = 0;
};

} // namespace gpu_sleep::sim
