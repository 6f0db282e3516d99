// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemset*. None of them waits: a memset is asynchronous to the host whatever its name.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/transfer.hpp"

namespace gpu_sleep::sim {
namespace {

/// Destination, pitch, value, element size, width, height.
using Fill = CUDA_MEMSET_NODE_PARAMS;

bool is_synchronous(Entry entry) noexcept {
    switch (entry) {
    case Entry::cuMemsetD8:
    case Entry::cuMemsetD32:
    case Entry::cuMemsetD2D16: return true;
    default: return false;
    }
}

CUresult fill(Call& c, Context& context, const Fill& fill, CUstream handle) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (fill.width == 0 || fill.height == 0) return CUDA_SUCCESS;
    std::shared_ptr<const Work> work;
    const auto status = make_memset(c, context, fill, work);
    // Of calls that are synchronous by their name none is recorded.
    if (status == CUDA_SUCCESS && stream->capture && is_synchronous(c.entry)) return break_capture(*stream);
    return status == CUDA_SUCCESS ? submit(c, *stream, std::move(work)) : status;
}

} // namespace

CUresult make_memset(const Call& call, const Context& context, const CUDA_MEMSET_NODE_PARAMS& fill,
                     std::shared_ptr<const Work>& work) {
    const auto element = fill.elementSize;
    if (element != 1 && element != 2 && element != 4) return CUDA_ERROR_INVALID_VALUE;
    if (fill.width == 0 || fill.height == 0 || fill.dst % element != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto width_bytes = fill.width * element;
    Side to{fill.dst, fill.pitch, context.accessor()};
    to.space = space_of(call.driver, to, width_bytes, fill.height);
    if (to.space == Space::pageable ||
        !will_be_reachable(call.driver, to, width_bytes, fill.height, Access::write))
        return CUDA_ERROR_INVALID_VALUE;
    work = std::make_shared<Memset>(to, fill.value, element, fill.width, fill.height);
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::sim

SIM_ENTRY(queued, 3020)
cuMemsetD8(Call& c, Context& context, CUdeviceptr to, unsigned char value, std::size_t count) {
    return fill(c, context, {to, 0, value, 1, count, 1}, nullptr);
}

SIM_ENTRY(queued, 3020)
cuMemsetD32(Call& c, Context& context, CUdeviceptr to, unsigned value, std::size_t count) {
    return fill(c, context, {to, 0, value, 4, count, 1}, nullptr);
}

SIM_ENTRY(queued, 3020)
cuMemsetD8Async(Call& c, Context& context, CUdeviceptr to, unsigned char value, std::size_t count,
                CUstream stream) {
    return fill(c, context, {to, 0, value, 1, count, 1}, stream);
}

SIM_ENTRY(queued, 3020)
cuMemsetD32Async(Call& c, Context& context, CUdeviceptr to, unsigned value, std::size_t count,
                 CUstream stream) {
    return fill(c, context, {to, 0, value, 4, count, 1}, stream);
}

SIM_ENTRY(queued, 3020)
cuMemsetD2D16(Call& c, Context& context, CUdeviceptr to, std::size_t pitch, unsigned short value,
              std::size_t width, std::size_t height) {
    return fill(c, context, {to, pitch, value, 2, width, height}, nullptr);
}
