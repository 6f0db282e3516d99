// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Kernels: host functions by name, and launches of them as work.

#pragma once

#include "support/simulated_driver/control.h"
#include "support/simulated_driver/work.hpp"

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::sim {

struct Kernel {
    struct Parameter {
        std::size_t offset, bytes;
    };
    std::string name;
    sim_kernel function;
    std::vector<Parameter> parameters;
    std::size_t argument_bytes; ///< of all parameters, laid out as in a launch buffer
};

/// Every kernel there is, in every module. Thread-safe.
class KernelRegistry {
public:
    /// The one of this process; it starts with the built-in kernels and the product's.
    static KernelRegistry& instance();

    void add(std::string_view name, sim_kernel function, std::span<const std::size_t> parameter_bytes);
    /// Null if there is none.
    [[nodiscard]] std::shared_ptr<const Kernel> find(const std::string& name);

private:
    KernelRegistry();

    std::mutex mutex_; ///< guards kernels_
    std::map<std::string, std::shared_ptr<const Kernel>> kernels_;
};

/// Adds the kernels that control.h names.
void add_built_in_kernels(KernelRegistry& registry);
/// Adds the product's kernels, compiled for the host.
void add_product_kernels(KernelRegistry& registry);

struct LaunchShape {
    std::array<unsigned, 3> grid{1, 1, 1};
    std::array<unsigned, 3> block{1, 1, 1};
    unsigned shared_bytes = 0;
};

/// One launch, with a copy of its arguments.
class KernelLaunch : public Work {
public:
    KernelLaunch(CUfunction function, std::shared_ptr<const Kernel> kernel, const LaunchShape& shape,
                 std::vector<std::byte> arguments);

    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUresult run(const Execution& execution) const override;

    /// As cuGraphKernelNodeGetParams shows it; the pointers are valid as long as this object.
    [[nodiscard]] CUDA_KERNEL_NODE_PARAMS node_parameters() const;

private:
    [[nodiscard]] bool pointers_are_accessible(const Execution& execution) const;

    CUfunction function_;
    std::shared_ptr<const Kernel> kernel_;
    LaunchShape shape_;
    std::vector<std::byte> arguments_;
    mutable std::vector<void*> pointers_; ///< to each argument; the API hands them out without const
};

/// Makes a launch of `function` in `context`. Errors: INVALID_HANDLE, INVALID_VALUE.
CUresult make_launch(const Driver& driver, const Context& context, CUfunction function,
                     const LaunchShape& shape, void** parameters, void** extra,
                     std::shared_ptr<const Work>& work);
/// The same, as a kernel node says it.
CUresult make_launch(const Driver& driver, const Context& context, const CUDA_KERNEL_NODE_PARAMS& parameters,
                     std::shared_ptr<const Work>& work);

} // namespace gpu_sleep::sim
