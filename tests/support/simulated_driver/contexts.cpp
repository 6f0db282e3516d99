// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contexts: cuCtx* and cuDevicePrimaryCtx*.

#include "support/simulated_driver/contexts.hpp"

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/graph_memory.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/plain_memory.hpp"
#include "support/simulated_driver/settings.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_primary_handles = std::uint64_t{15} << 40;

/// Has no destructor: programs call the driver when their thread's objects are gone.
class ContextStack {
public:
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] CUcontext back() const noexcept { return contexts_[size_ - 1]; }
    /// The oldest is forgotten when there is no room.
    void push_back(CUcontext context) noexcept {
        if (size_ == contexts_.size())
            std::copy(contexts_.begin() + 1, contexts_.begin() + size_--, contexts_.begin());
        contexts_[size_++] = context;
    }
    void pop_back() noexcept { --size_; }

private:
    std::array<CUcontext, 16> contexts_; // the room for such variables is small
    std::size_t size_;
};

thread_local ContextStack context_stack; // zeros
thread_local CUstream default_stream = CU_STREAM_LEGACY;

CUcontext primary_handle(int device) noexcept {
    return reinterpret_cast<CUcontext>(k_primary_handles + static_cast<std::uint64_t>(device + 1) * 16);
}

std::shared_ptr<Context> make_context(Driver& driver, CUcontext handle, int device, unsigned flags,
                                      bool primary) {
    if (!DeviceBudget::instance().take(device, settings().context_bytes)) return nullptr;
    return std::make_shared<Context>(handle, device, flags, driver.next_id++, primary);
}

/// Ends streams that were destroyed and have done their work.
void reap_streams(Context& context) {
    std::erase_if(context.streams, [](const auto& stream) { return stream->closed_and_done(); });
}

} // namespace

std::shared_ptr<Context> find_context(Driver& driver, CUcontext handle) {
    return driver.contexts.find(handle);
}

std::shared_ptr<Context> retain_primary(Driver& driver, int device) {
    auto& primary = driver.primaries[static_cast<std::size_t>(device)];
    if (!primary.active) {
        auto context = make_context(driver, primary_handle(device), device, primary.flags, true);
        if (!context) return nullptr;
        driver.contexts.put(context->handle, context);
        primary.active = std::move(context);
    }
    ++primary.references;
    return primary.active;
}

CUresult release_primary(Call& call, int device) {
    auto& primary = call.driver.primaries[static_cast<std::size_t>(device)];
    if (primary.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary.references == 0)
        if (const auto last = std::exchange(primary.active, nullptr)) destroy_context(call, last);
    return CUDA_SUCCESS;
}

CUresult current_context(Driver& driver, std::shared_ptr<Context>& context) {
    if (context_stack.empty() || !context_stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
    context = driver.contexts.find(context_stack.back());
    return context ? context->error() : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

bool take_room_for_stream(Context& context) {
    const bool has_room =
        context.made_streams != 1 || DeviceBudget::instance().take(context.device, settings().stream_bytes);
    context.made_streams += has_room ? 1 : 0;
    return has_room;
}

std::shared_ptr<Stream> add_stream(Context& context, Stream::Kind kind) {
    reap_streams(context);
    context.streams.push_back(std::make_shared<Stream>(context, kind));
    return context.streams.back();
}

void retire_stream(Context& context, Stream& stream) {
    stream.close();
    reap_streams(context);
    if (context.made_streams > 0 && --context.made_streams == 1)
        DeviceBudget::instance().give_back(context.device, settings().stream_bytes);
}

std::shared_ptr<Stream> find_stream(Driver& driver, Context& context, CUstream handle) {
    if (!handle) handle = default_stream;
    if (handle == CU_STREAM_LEGACY) {
        if (!context.legacy) context.legacy = add_stream(context, Stream::Kind::legacy);
        return context.legacy;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        auto& stream = context.per_thread[thread_id()];
        if (!stream) stream = add_stream(context, Stream::Kind::blocking);
        return stream;
    }
    return driver.streams.find(handle);
}

PerThreadDefault::PerThreadDefault() noexcept {
    default_stream = CU_STREAM_PER_THREAD;
}

PerThreadDefault::~PerThreadDefault() {
    default_stream = CU_STREAM_LEGACY;
}

std::vector<Ticket> all_work(const Context& context) {
    std::vector<Ticket> tickets;
    for (const auto& stream : context.streams) tickets.push_back(stream->last());
    for (const auto& green : context.greens)
        for (const auto& stream : green->streams) tickets.push_back(stream->last());
    return tickets;
}

CUresult wait_for(Call& call, const Context& context, const std::vector<Ticket>& tickets) {
    call.lock.unlock();
    for (const auto& ticket : tickets) ticket.wait();
    call.lock.lock();
    return context.error();
}

void destroy_context(Call& call, const std::shared_ptr<Context>& context) {
    auto& driver = call.driver;
    driver.green_contexts.remove_if([&](const GreenContext& g) { return g.context->owner == context.get(); });
    for (const auto& green : std::exchange(context->greens, {})) destroy_context(call, green);
    driver.contexts.remove(context->handle);
    forget_captures(driver, *context);
    auto streams = driver.streams.remove_if([&](const Stream& s) { return &s.context == context.get(); });
    driver.events.remove_if([&](const Event& e) { return e.context == context.get(); });
    driver.modules.remove_if([&](const Module& m) { return m.context == context.get(); });
    driver.functions.remove_if([&](const Function& f) { return f.context == context.get(); });
    driver.execs.remove_if([&](const GraphExec& e) { return e.context == context.get(); });
    const auto working = context->streams;
    for (const auto& stream : working) stream->abandon();
    call.lock.unlock();
    for (const auto& stream : working) stream->join();
    call.lock.lock();
    free_plain_memory_of(driver, *context);
    free_pool_memory_of(driver, *context);
    free_graph_memory_of(driver, *context);
    driver.host.remove_all_of(context.get());
    if (context->made_streams > 1)
        DeviceBudget::instance().give_back(context->device, settings().stream_bytes);
    if (context->owner == context.get())
        DeviceBudget::instance().give_back(context->device, settings().context_bytes);
}

} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 7000) cuDevicePrimaryCtxRetain(Call& c, CUcontext* context, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    SIM_FIND(primary, retain_primary(c.driver, device), CUDA_ERROR_OUT_OF_MEMORY);
    *context = primary->handle;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11000) cuDevicePrimaryCtxRelease(Call& c, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return release_primary(c, device);
}

SIM_ENTRY(safe, 11000) cuDevicePrimaryCtxReset(Call& c, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    auto& primary = c.driver.primaries[static_cast<std::size_t>(device)];
    bool has_green = false;
    c.driver.green_contexts.for_each([&](CUgreenCtx, const GreenContext& green) {
        has_green |= green.context->owner == primary.active.get();
    });
    if (has_green) return CUDA_ERROR_NOT_PERMITTED;
    // Who retained it still has to release it.
    if (const auto last = std::exchange(primary.active, nullptr)) destroy_context(c, last);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 7000) cuDevicePrimaryCtxGetState(Call& c, CUdevice device, unsigned* flags, int* active) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    const auto& primary = c.driver.primaries[static_cast<std::size_t>(device)];
    *flags = primary.flags;
    *active = primary.active ? 1 : 0;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11000) cuDevicePrimaryCtxSetFlags(Call& c, CUdevice device, unsigned flags) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    auto& primary = c.driver.primaries[static_cast<std::size_t>(device)];
    primary.flags = flags;
    if (primary.active) primary.active->flags = flags;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12050)
cuCtxCreate(Call& c, CUcontext* handle, CUctxCreateParams*, unsigned flags, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const auto own_handle = reinterpret_cast<CUcontext>((std::uint64_t{1} << 40) + c.driver.next_id * 16);
    auto context = make_context(c.driver, own_handle, device, flags, false);
    if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
    c.driver.contexts.put(own_handle, context);
    context_stack.push_back(own_handle);
    *handle = own_handle;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuCtxDestroy(Call& c, CUcontext handle) {
    const auto context = find_context(c.driver, handle);
    if (!context || context->primary || context->owner != context.get()) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context_stack.empty() && context_stack.back() == handle) context_stack.pop_back();
    destroy_context(c, context);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuCtxPushCurrent(Call& c, CUcontext handle) {
    if (!find_context(c.driver, handle)) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(handle);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuCtxPopCurrent(Call&, CUcontext* handle) {
    if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle) *handle = context_stack.back();
    context_stack.pop_back();
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuCtxSetCurrent(Call& c, CUcontext handle) {
    if (handle && !find_context(c.driver, handle)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context_stack.empty()) context_stack.pop_back();
    if (handle) context_stack.push_back(handle);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuCtxGetCurrent(Call&, CUcontext* handle) {
    return give(handle, context_stack.empty() ? nullptr : context_stack.back());
}

SIM_ENTRY(safe, 2000) cuCtxGetDevice(Call&, Context& context, CUdevice* device) {
    return give(device, context.device);
}

SIM_ENTRY(safe, 7000) cuCtxGetFlags(Call&, Context& context, unsigned* flags) {
    return give(flags, context.flags);
}

SIM_ENTRY(safe, 12000) cuCtxGetId(Call& c, CUcontext handle, unsigned long long* id) {
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Context> context;
    if (!handle) {
        if (const auto status = current_context(c.driver, context); !context) return status;
    } else {
        context = find_context(c.driver, handle);
    }
    if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = context->id;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuCtxEnablePeerAccess(Call& c, Context& context, CUcontext peer, unsigned flags) {
    const auto other = find_context(c.driver, peer);
    if (flags != 0 || !other || other.get() == &context) return CUDA_ERROR_INVALID_VALUE;
    const auto bit = std::uint32_t{1} << other->device;
    if ((context.peers & bit) != 0) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context.peers |= bit;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuCtxDisablePeerAccess(Call& c, Context& context, CUcontext peer) {
    SIM_FIND(other, find_context(c.driver, peer), CUDA_ERROR_INVALID_CONTEXT);
    const auto bit = std::uint32_t{1} << other->device;
    if ((context.peers & bit) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context.peers &= ~bit;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 2000) cuCtxSynchronize(Call& c, Context& context) {
    if (break_captures_of(c.driver, context)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const auto status = wait_for(c, context, all_work(context));
    if (status == CUDA_SUCCESS) synchronize_all_pools(c.driver);
    return status;
}
