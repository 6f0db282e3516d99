// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One event for each context whose work is waited for, or looked at for a moment.

#include "intercepted/pending_work.hpp"

#include "base/guard.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

/// Waiting for it is as the program chose for its current context: busy, or not.
unsigned flags_of_events(const driver::Api& api) {
    unsigned flags = 0;
    const bool blocks = api.cuCtxGetFlags(&flags) == CUDA_SUCCESS &&
                        (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
    return blocks ? CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC : CU_EVENT_DISABLE_TIMING;
}

} // namespace

CUevent take_event(const driver::Api& api, CUcontext context) {
    if (auto* const cached = registry::books().contexts.take_event(context)) return cached;
    const driver::CurrentContext entered(api, context);
    CUevent event = nullptr;
    const bool is_made =
        entered.status() == CUDA_SUCCESS && api.cuEventCreate(&event, flags_of_events(api)) == CUDA_SUCCESS;
    return is_made ? event : nullptr;
}

PendingWork::~PendingWork() {
    for (auto& each : noted()) {
        if (each.done) registry::books().contexts.give_event(each.context, each.done);
        if (each.block == 0) continue; // nobody has waited
        const driver::RelaxedCaptureMode relaxed(api_);
        free_block(each);
    }
}

bool PendingWork::record(CUcontext context) noexcept {
    if (!api_.cuCtxRecordEvent || count_ == noted_.size()) return false; // a driver before 12.5, say
    bool is_recorded = false;
    ignoring_errors([&] {
        auto* const event = take_event(api_, context);
        if (!event) return;
        is_recorded = api_.cuCtxRecordEvent(context, event) == CUDA_SUCCESS;
        if (is_recorded)
            noted_[count_++] = {context, event, 0};
        else
            registry::books().contexts.give_event(context, event);
    });
    return is_recorded;
}

bool PendingWork::take_block(CUcontext context) noexcept {
    if (count_ == noted_.size()) return false;
    CUdeviceptr block = 0;
    if (api_.cuMemAlloc(&block, 1) != CUDA_SUCCESS) return false;
    noted_[count_++] = {context, nullptr, block};
    return true;
}

void PendingWork::free_block(Noted& noted) noexcept {
    const driver::CurrentContext current(api_, noted.context);
    look_at(api_.cuMemFree(noted.block));
    noted.block = 0;
}

bool PendingWork::note(CUcontext context, bool stays) noexcept {
    const bool is_there = std::ranges::find(noted(), context, &Noted::context) != noted().end();
    if (!context || (stays && is_there)) return true;
    const driver::RelaxedCaptureMode relaxed(api_);
    const driver::CurrentContext current(api_, context);
    const bool is_current = current.status() == CUDA_SUCCESS;
    if (way_ == Way::amid_captures) return stays && is_current && take_block(context);
    if (way_ == Way::to_look) return stays && is_current && record(context);
    const bool is_noted = stays && is_current && (record(context) || take_block(context));
    if (is_current && !is_noted) look_at(api_.cuCtxSynchronize());
    return true;
}

bool PendingWork::is_done() noexcept {
    const driver::RelaxedCaptureMode relaxed(api_);
    return std::ranges::all_of(
        noted(), [this](const Noted& each) { return api_.cuEventQuery(each.done) == CUDA_SUCCESS; });
}

CUresult PendingWork::wait() noexcept {
    const driver::RelaxedCaptureMode relaxed(api_); // in which it breaks no capture that has begun since
    for (auto& each : noted()) {
        if (each.block != 0) free_block(each);
        if (!each.done || api_.cuEventQuery(each.done) == CUDA_SUCCESS) continue; // most often
        const driver::CurrentContext current(api_, each.context);
        look_at(api_.cuEventSynchronize(each.done));
    }
    return failure_;
}

bool note_work_on(const driver::Api& api, int device, PendingWork& work) {
    auto& contexts = registry::books().contexts;
    CUcontext current = nullptr;
    bool is_noted = true;
    if (driver::current_device(api) == device && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS)
        is_noted &= work.note(current);
    if (driver::is_primary_active(api, device)) {
        const auto primary = driver::PrimaryContext::retain(api, device);
        // Without a hold of the program's it ends when we let go.
        if (primary) is_noted &= work.note(primary->get(), contexts.holds(device));
    }
    for (auto* const context : contexts.made_on(device)) is_noted &= work.note(context);
    return is_noted;
}

std::vector<CUcontext> all_contexts(const std::vector<driver::PrimaryContext>& primary) {
    auto contexts = registry::books().contexts.made_on(std::nullopt);
    for (const auto& context : primary) contexts.push_back(context.get());
    return contexts;
}

RunningWork find_running_work(const driver::Api& api) {
    if (!api.cuCtxRecordEvent) return RunningWork::unknown;
    auto& books = registry::books();
    // A thread that ends a context, or begins a capture, is at work.
    const std::shared_lock contexts_stay(books.contexts.alive, std::try_to_lock);
    if (!contexts_stay) return RunningWork::some;
    const auto primary = driver::active_contexts(api);
    if (!primary) return RunningWork::some;
    const auto contexts = all_contexts(*primary);
    PendingWork work(api, PendingWork::Way::to_look);
    std::shared_lock order(books.captures.order, std::try_to_lock);
    if (!order || books.captures.count() != 0) return RunningWork::some;
    for (auto* const context : contexts)
        if (!work.note(context)) return RunningWork::some;
    order.unlock();
    constexpr Milliseconds k_moment{5}; // an idle GPU needs some microseconds for an event
    constexpr std::chrono::microseconds k_look{50};
    for (const auto deadline = Clock::now() + k_moment; !work.is_done(); std::this_thread::sleep_for(k_look))
        if (Clock::now() >= deadline) return RunningWork::some;
    return RunningWork::none;
}

} // namespace gpu_sleep::agent::intercepted
