// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuLaunchKernel and its kin.

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/kernels.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

namespace gpu_sleep::sim {
namespace {

/// The buffer that the `extra` of a launch names; nothing if that is malformed or too small.
std::optional<std::vector<std::byte>> arguments_from_buffer(const Kernel& kernel, void** extra) {
    const std::byte* buffer = nullptr;
    std::size_t bytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = static_cast<const std::byte*>(extra[1]);
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = *static_cast<const std::size_t*>(extra[1]);
        else
            return std::nullopt;
    }
    if (bytes < kernel.argument_bytes || (!buffer && kernel.argument_bytes > 0)) return std::nullopt;
    return std::vector<std::byte>(buffer, buffer + kernel.argument_bytes);
}

/// A copy of the arguments of a launch, whichever way they are given.
std::optional<std::vector<std::byte>> arguments_of(const Kernel& kernel, void** parameters, void** extra) {
    if (!parameters && extra) return arguments_from_buffer(kernel, extra);
    if (!parameters && !kernel.parameters.empty()) return std::nullopt;
    std::vector<std::byte> arguments(kernel.argument_bytes);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
        std::memcpy(arguments.data() + kernel.parameters[i].offset, parameters[i],
                    kernel.parameters[i].bytes);
    return arguments;
}

bool is_valid(const LaunchShape& shape) {
    const auto positive = [](const auto& sizes) {
        return std::all_of(sizes.begin(), sizes.end(), [](unsigned size) { return size > 0; });
    };
    constexpr unsigned k_max_threads = 1024;
    return positive(shape.grid) && positive(shape.block) &&
           shape.block[0] * shape.block[1] * shape.block[2] <= k_max_threads;
}

CUresult launch(Call& c, Context& context, CUfunction handle, const LaunchShape& shape,
                CUstream stream_handle, void** parameters, void** extra) {
    SIM_FIND(stream, find_stream(c.driver, context, stream_handle), CUDA_ERROR_INVALID_HANDLE);
    std::shared_ptr<const Work> work;
    const auto status = make_launch(c.driver, stream->context, handle, shape, parameters, extra, work);
    return status == CUDA_SUCCESS ? submit(c, *stream, std::move(work)) : status;
}

} // namespace

CUresult make_launch(const Driver& driver, const Context& context, CUfunction handle,
                     const LaunchShape& shape, void** parameters, void** extra,
                     std::shared_ptr<const Work>& work) {
    const auto function = driver.functions.find(handle);
    if (!function || (function->context && function->context != &context)) return CUDA_ERROR_INVALID_HANDLE;
    if (!is_valid(shape)) return CUDA_ERROR_INVALID_VALUE;
    auto arguments = arguments_of(*function->kernel, parameters, extra);
    if (!arguments) return CUDA_ERROR_INVALID_VALUE;
    work = std::make_shared<KernelLaunch>(handle, function->kernel, shape, std::move(*arguments));
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::sim

SIM_ENTRY(queued, 4000)
cuLaunchKernel(Call& c, Context& context, CUfunction function, unsigned grid_x, unsigned grid_y,
               unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
               CUstream stream, void** parameters, void** extra) {
    const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    return launch(c, context, function, shape, stream, parameters, extra);
}

SIM_ENTRY(queued, 11060)
cuLaunchKernelEx(Call& c, Context& context, const CUlaunchConfig* config, CUfunction function,
                 void** parameters, void** extra) {
    static constexpr CUlaunchConfig k_none{};
    const auto& asked = config ? *config : k_none; // no threads at all, which is refused
    const LaunchShape shape{{asked.gridDimX, asked.gridDimY, asked.gridDimZ},
                            {asked.blockDimX, asked.blockDimY, asked.blockDimZ},
                            asked.sharedMemBytes};
    return launch(c, context, function, shape, asked.hStream, parameters, extra);
}
