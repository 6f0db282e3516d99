// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams: cuStream*, and host functions in them.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/work.hpp"

#include <algorithm>

namespace gpu_sleep::sim {
namespace {

/// cuLaunchHostFunc.
class HostFunction : public Work {
public:
    HostFunction(CUhostFn function, void* data) : function_(function), data_(data) {}
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_HOST; }
    CUresult run(const Execution&) const override {
        const HostFunctionScope scope;
        function_(data_);
        return CUDA_SUCCESS;
    }

private:
    CUhostFn function_;
    void* data_;
};

CUresult create_stream(Call& c, Context& context, CUstream* handle, unsigned flags) {
    if (!handle || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto kind = flags == CU_STREAM_NON_BLOCKING ? Stream::Kind::non_blocking : Stream::Kind::blocking;
    if (!take_room_for_stream(context)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = c.driver.streams.insert(add_stream(context, kind));
    return CUDA_SUCCESS;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 2000) cuStreamCreate(Call& c, Context& context, CUstream* handle, unsigned flags) {
    return create_stream(c, context, handle, flags);
}

SIM_ENTRY(safe, 5050)
cuStreamCreateWithPriority(Call& c, Context& context, CUstream* handle, unsigned flags, int) {
    return create_stream(c, context, handle, flags);
}

SIM_ENTRY(safe, 4000) cuStreamDestroy(Call& c, CUstream handle) {
    SIM_FIND(stream, c.driver.streams.remove(handle), CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture) break_capture(*stream);
    if (stream->idle()) synchronize_pools(c.driver, {stream->last()});
    retire_stream(stream->context, *stream);
    return CUDA_SUCCESS;
}

SIM_ENTRY(unsafe, 2000) cuStreamQuery(Call& c, Context& context, CUstream handle) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture) return break_capture(*stream);
    // The legacy stream is done when the blocking streams are.
    const auto& all = stream->context.streams;
    const bool is_legacy = stream->kind() == Stream::Kind::legacy;
    const bool is_done = stream->idle() && std::all_of(all.begin(), all.end(), [=](const auto& other) {
                             return !is_legacy || !other->blocks_legacy() || other->idle();
                         });
    return is_done ? stream->context.error() : CUDA_ERROR_NOT_READY;
}

SIM_ENTRY(unsafe, 2000) cuStreamSynchronize(Call& c, Context& context, CUstream handle) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture) return break_capture(*stream);
    SIM_TRY(refuse_implicit_dependency(c.driver, *stream));
    const auto owner = c.driver.contexts.find(stream->context.handle);
    // The legacy stream is done when the blocking streams are.
    const bool is_legacy = stream->kind() == Stream::Kind::legacy;
    std::vector<Ticket> reached{is_legacy ? enqueue(*stream, {}, nullptr) : stream->last()};
    for (const auto& other : owner->streams)
        if (is_legacy && other->blocks_legacy()) reached.push_back(other->last());
    const auto status = wait_for(c, *owner, {reached.front()});
    if (status == CUDA_SUCCESS) synchronize_pools(c.driver, reached);
    return status;
}

SIM_ENTRY(safe, 9020) cuStreamGetCtx(Call& c, Context& context, CUstream handle, CUcontext* owner) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    return give(owner, stream->context.handle);
}

SIM_ENTRY(queued, 10000)
cuLaunchHostFunc(Call& c, Context& context, CUstream handle, CUhostFn function, void* data) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    return submit(c, *stream, std::make_shared<HostFunction>(function, data));
}
