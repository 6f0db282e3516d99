// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The registry of kernels, and running one.

#include "support/simulated_driver/kernels.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/guarded.hpp"

#include <bit>
#include <cstring>

namespace gpu_sleep::sim {
namespace {

/// What the driver knows about the launch that a kernel sees.
const Execution& execution_of(const sim_launch* launch) noexcept {
    return *static_cast<const Execution*>(launch->internal);
}

bool may_access(const Execution& execution, std::uint64_t address, std::uint64_t bytes, Access access) {
    auto& driver = Driver::instance();
    const std::lock_guard lock(driver.mutex);
    if (driver.space.is_reserved(address))
        return driver.space.accessible(address, bytes, execution.context.accessor(), access,
                                       execution.space_as_of);
    return driver.host.covers(address, bytes, execution.host_as_of);
}

} // namespace

KernelRegistry& KernelRegistry::instance() {
    static KernelRegistry& registry = *new KernelRegistry;
    return registry;
}

KernelRegistry::KernelRegistry() {
    add_built_in_kernels(*this);
    add_product_kernels(*this);
}

void KernelRegistry::add(std::string_view name, sim_kernel function,
                         std::span<const std::size_t> parameter_bytes) {
    const std::string key(name);
    Kernel kernel{key, function, {}, 0};
    for (const auto bytes : parameter_bytes) {
        // Each parameter is aligned to its size, or to 8 bytes if it is a structure.
        const auto alignment = bytes <= 8 && std::has_single_bit(bytes) ? bytes : 8;
        kernel.argument_bytes = round_up(kernel.argument_bytes, alignment);
        kernel.parameters.push_back({kernel.argument_bytes, bytes});
        kernel.argument_bytes += bytes;
    }
    const std::lock_guard lock(mutex_);
    kernels_[key] = std::make_shared<const Kernel>(std::move(kernel));
}

std::shared_ptr<const Kernel> KernelRegistry::find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = kernels_.find(name);
    return found == kernels_.end() ? nullptr : found->second;
}

KernelLaunch::KernelLaunch(CUfunction function, std::shared_ptr<const Kernel> kernel,
                           const LaunchShape& shape, std::vector<std::byte> arguments)
    : function_(function), kernel_(std::move(kernel)), shape_(shape), arguments_(std::move(arguments)) {
    for (const auto& parameter : kernel_->parameters)
        pointers_.push_back(arguments_.data() + parameter.offset);
}

bool KernelLaunch::pointers_are_accessible(const Execution& execution) const {
    auto& driver = Driver::instance();
    const std::lock_guard lock(driver.mutex);
    for (const auto& [offset, bytes] : kernel_->parameters) {
        std::uint64_t value = 0;
        if (bytes != sizeof value) continue;
        std::memcpy(&value, arguments_.data() + offset, sizeof value);
        // An address that is reserved but not mapped faults by itself when the kernel uses it.
        if (!driver.space.find(value)) continue;
        if (!driver.space.accessible(value, 1, execution.context.accessor(), Access::read,
                                     execution.space_as_of))
            return false;
    }
    return true;
}

CUresult KernelLaunch::run(const Execution& execution) const {
    const sim_launch launch{{shape_.grid[0], shape_.grid[1], shape_.grid[2]},
                            {shape_.block[0], shape_.block[1], shape_.block[2]},
                            shape_.shared_bytes,
                            execution.context.device,
                            &execution};
    auto body = [&] { kernel_->function(&launch, pointers_.data()); };
    return pointers_are_accessible(execution) && run_guarded(body) ? CUDA_SUCCESS : illegal_access();
}

CUDA_KERNEL_NODE_PARAMS KernelLaunch::node_parameters() const {
    CUDA_KERNEL_NODE_PARAMS parameters{};
    parameters.func = function_;
    parameters.gridDimX = shape_.grid[0];
    parameters.gridDimY = shape_.grid[1];
    parameters.gridDimZ = shape_.grid[2];
    parameters.blockDimX = shape_.block[0];
    parameters.blockDimY = shape_.block[1];
    parameters.blockDimZ = shape_.block[2];
    parameters.sharedMemBytes = shape_.shared_bytes;
    parameters.kernelParams = pointers_.data();
    return parameters;
}

} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

void sim_register_kernel(const char* name, sim_kernel function, const std::size_t* parameter_bytes,
                         std::size_t parameter_count) {
    KernelRegistry::instance().add(name, function, {parameter_bytes, parameter_count});
}

void* sim_require_access(const sim_launch* launch, std::uint64_t address, std::uint64_t bytes, int write) {
    const auto access = write != 0 ? Access::write : Access::read;
    if (bytes != 0 && !may_access(execution_of(launch), address, bytes, access)) abandon_guarded();
    auto& driver = Driver::instance();
    const std::lock_guard lock(driver.mutex);
    return driver.space.bytes_at(address, bytes);
}

int sim_launch_cancelled(const sim_launch* launch) {
    return execution_of(launch).cancelled ? 1 : 0;
}
