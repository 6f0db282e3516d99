// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Events: cuEvent*, waiting for them, and recording a whole context.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/interprocess_events.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/work.hpp"

#include <algorithm>

namespace gpu_sleep::sim {
namespace {

using Stamp = std::atomic<std::int64_t>;

/// What the last recording waits for, also one of another process.
std::vector<Ticket> tickets_of(const Event& event) {
    auto tickets = event.tickets;
    if (event.shared) tickets.push_back({event.shared, event.shared->recorded()});
    return tickets;
}

bool is_done(const Event& event) {
    const auto tickets = tickets_of(event);
    return std::all_of(tickets.begin(), tickets.end(), [](const Ticket& t) { return t.done(); });
}

void forget_capture(Event& event) {
    event.captured = false;
    event.capture.reset();
    event.clock.clear();
}

std::shared_ptr<Stamp> make_stamp(const Event& event) {
    return (event.flags & CU_EVENT_DISABLE_TIMING) != 0 ? nullptr : std::make_shared<Stamp>(0);
}

void set_to_now(Stamp& stamp) {
    stamp = std::chrono::steady_clock::now().time_since_epoch().count();
}

CUresult record_event(Call& c, Context& context, CUevent handle, CUstream stream_handle) {
    const auto event = c.driver.events.find(handle);
    const auto stream = find_stream(c.driver, context, stream_handle);
    if (!event || !stream || event->context != stream->context.owner) return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(refuse_implicit_dependency(c.driver, *stream));
    if (stream->capture) return record_captured(*stream, *event);
    const auto stamp = make_stamp(*event);
    const auto number = event->shared ? event->shared->record() : 0;
    auto ticket = enqueue(*stream, {}, [stamp, shared = event->shared, number] {
        if (stamp) set_to_now(*stamp);
        if (shared) shared->complete(number);
    });
    forget_capture(*event);
    event->stamp = stamp;
    event->tickets = {std::move(ticket)};
    return CUDA_SUCCESS;
}

/// A call about an event: `body` gets it, and its context.
template <class Body>
CUresult with_event(Call& c, CUevent handle, Body&& body) {
    SIM_FIND(event, c.driver.events.find(handle), CUDA_ERROR_INVALID_HANDLE);
    if (event->captured) return break_capture_of(*event);
    const auto context = find_context(c.driver, event->context->handle);
    return context->error() != CUDA_SUCCESS ? context->error() : body(*context, *event);
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 2000) cuEventCreate(Call& c, Context& context, CUevent* handle, unsigned flags) {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const auto event = std::make_shared<Event>();
    event->flags = flags;
    event->context = context.owner;
    if ((flags & CU_EVENT_INTERPROCESS) != 0) event->shared = SharedEvent::create();
    *handle = c.driver.events.insert(event);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuEventDestroy(Call& c, CUevent handle) {
    return c.driver.events.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_ENTRY(queued, 2000) cuEventRecord(Call& c, Context& context, CUevent event, CUstream stream) {
    return record_event(c, context, event, stream);
}

// Both are unsafe amid a capture, but of a captured event the driver says that first.
SIM_ENTRY(safe, 2000) cuEventQuery(Call& c, CUevent handle) {
    return with_event(c, handle, [&](const Context& context, const Event& event) {
        SIM_TRY(refuse_during_capture(c.driver));
        return is_done(event) ? context.error() : CUDA_ERROR_NOT_READY;
    });
}

SIM_ENTRY(safe, 2000) cuEventSynchronize(Call& c, CUevent handle) {
    return with_event(c, handle, [&](const Context& context, const Event& event) {
        SIM_TRY(refuse_during_capture(c.driver));
        const auto tickets = tickets_of(event);
        const auto status = wait_for(c, context, std::vector<Ticket>(tickets));
        if (status == CUDA_SUCCESS) synchronize_pools(c.driver, tickets);
        return status;
    });
}

SIM_ENTRY(safe, 12080) cuEventElapsedTime(Call& c, float* milliseconds, CUevent start, CUevent end) {
    return with_event(c, start, [&](const Context&, const Event& first) {
        const auto second = c.driver.events.find(end);
        if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
        if (!second || !first.stamp || !second->stamp) return CUDA_ERROR_INVALID_HANDLE;
        if (!is_done(first) || !is_done(*second)) return CUDA_ERROR_NOT_READY;
        *milliseconds = static_cast<float>(static_cast<double>(*second->stamp - *first.stamp) / 1e6);
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(queued, 3020)
cuStreamWaitEvent(Call& c, Context& context, CUstream stream_handle, CUevent event_handle, unsigned) {
    const auto stream = find_stream(c.driver, context, stream_handle);
    const auto event = c.driver.events.find(event_handle);
    if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(refuse_implicit_dependency(c.driver, *stream));
    if (event->captured) return wait_captured(stream, *event);
    if (stream->capture) {
        // Captured work may not depend on work outside of the capture.
        break_capture(*stream);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    enqueue(*stream, tickets_of(*event), nullptr);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12050) cuCtxRecordEvent(Call& c, CUcontext context_handle, CUevent event_handle) {
    const auto context = find_context(c.driver, context_handle);
    const auto event = c.driver.events.find(event_handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!event || event->context != context->owner) return CUDA_ERROR_INVALID_HANDLE;
    if (context->error() != CUDA_SUCCESS) return context->error();
    if (break_captures_of(c.driver, *context)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    forget_capture(*event);
    event->stamp = nullptr;
    event->tickets = all_work(*context);
    return CUDA_SUCCESS;
}
