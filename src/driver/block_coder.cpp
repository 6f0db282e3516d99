// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Launches the kernels that code blocks, which are carried inside the library.

#include "driver/block_coder.hpp"

#include "driver/kernels/image.hpp"

#include <algorithm>
#include <limits>

GPU_SLEEP_KERNEL_IMAGE(gpu_sleep_block_code_image, GPU_SLEEP_BLOCK_CODE_FATBIN);

namespace gpu_sleep::driver {

Result<std::unique_ptr<BlockCoder>> BlockCoder::load(const Api& api) {
    std::unique_ptr<BlockCoder> coder(new BlockCoder(api));
    GPU_SLEEP_DRIVER_TRY(api, cuModuleLoadData, "cannot load the kernels that code blocks", &coder->module_,
                         gpu_sleep_block_code_image);
    auto* kernel = coder->kernels_;
    for (const auto* name :
         {"gpu_sleep_measure_blocks", "gpu_sleep_encode_blocks", "gpu_sleep_decode_blocks"})
        GPU_SLEEP_DRIVER_TRY(api, cuModuleGetFunction, "cannot find a kernel that codes blocks", kernel++,
                             coder->module_, name);
    return coder;
}

BlockCoder::~BlockCoder() {
    if (module_) api_.cuModuleUnload(module_);
}

Result<void> BlockCoder::run(BlockWork work, std::span<BlockTask> tasks, CodedSide side,
                             CUstream stream) const {
    if (tasks.empty()) return {};
    auto* data = tasks.data();
    std::uint64_t count = tasks.size();
    void* arguments[] = {&data, &count};
    constexpr std::uint64_t k_straight = 32; // fill the link of an H200 (coder_bench)
    const auto most = side == CodedSide::host ? k_straight : std::uint64_t{std::numeric_limits<int>::max()};
    const bool decodes = work == BlockWork::decode;
    const auto grid = std::min(most, decodes ? count * k_decode_parts : count);
    GPU_SLEEP_DRIVER_TRY(api_, cuLaunchKernel, "cannot launch a kernel that codes blocks",
                         kernels_[static_cast<int>(work)], static_cast<unsigned>(grid), 1, 1,
                         decodes ? k_decode_threads : k_encode_threads, 1, 1, 0, stream, arguments, nullptr);
    return {};
}

} // namespace gpu_sleep::driver
