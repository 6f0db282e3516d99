// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Green contexts: cuGreenCtx* and cuCtxFromGreenCtx. What they have of the device is not simulated. As the
// real ones do, each holds its device's primary context, which has the memory that is allocated in it; its
// end takes its streams away, does not wait for their work, and leaves events as they are.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"

#include <memory>

SIM_ENTRY(safe, 12040)
cuGreenCtxCreate(Call& c, CUgreenCtx* handle, CUdevResourceDesc, CUdevice device, unsigned flags) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!handle || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    SIM_FIND(primary, retain_primary(c.driver, device), CUDA_ERROR_OUT_OF_MEMORY);
    const auto its_handle = reinterpret_cast<CUcontext>((std::uint64_t{1} << 40) + c.driver.next_id * 16);
    auto context = std::make_shared<Context>(its_handle, device, flags, c.driver.next_id++, false);
    context->owner = primary.get();
    primary->greens.push_back(context);
    c.driver.contexts.put(its_handle, context);
    *handle = c.driver.green_contexts.insert(std::make_shared<GreenContext>(GreenContext{context}));
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12040) cuGreenCtxDestroy(Call& c, CUgreenCtx handle) {
    SIM_FIND(green, c.driver.green_contexts.remove(handle), CUDA_ERROR_INVALID_CONTEXT);
    auto& context = *green->context;
    c.driver.contexts.remove(context.handle);
    forget_captures(c.driver, context);
    c.driver.streams.remove_if([&](const Stream& s) { return &s.context == &context; });
    for (const auto& stream : context.streams) stream->close();
    return release_primary(c, context.device);
}

SIM_ENTRY(safe, 12040) cuCtxFromGreenCtx(Call& c, CUcontext* context, CUgreenCtx handle) {
    const auto green = c.driver.green_contexts.find(handle);
    if (!context || !green) return CUDA_ERROR_INVALID_VALUE;
    *context = green->context->handle;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12050)
cuGreenCtxStreamCreate(Call& c, CUstream* stream, CUgreenCtx handle, unsigned flags, int) {
    const auto green = c.driver.green_contexts.find(handle);
    if (!stream || !green || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = c.driver.streams.insert(add_stream(*green->context, Stream::Kind::non_blocking));
    return CUDA_SUCCESS;
}
