// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking contexts up.

#include "intercepted/own_contexts.hpp"

#include "base/immortal.hpp"
#include "driver/context.hpp"
#include "intercepted/contexts_lock.hpp"
#include "intercepted/pending_work.hpp"
#include "intercepted/state.hpp"

#include <mutex>
#include <shared_mutex>

namespace gpu_sleep::agent::intercepted {

OwnContexts& OwnContexts::instance() {
    static Immortal<OwnContexts> s_own;
    return *s_own;
}

Primary primary_of(const driver::Api& api, CUdevice device) {
    unsigned flags = 0;
    int is_active = 0;
    if (api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) != CUDA_SUCCESS || !is_active) return {};
    const auto held = driver::PrimaryContext::retain(api, device);
    if (!held) return {};
    Primary primary{held->get(), 0};
    if (api.cuCtxGetId) api.cuCtxGetId(primary.context, &primary.id);
    return primary;
}

CUcontext owner_of_memory_in(CUcontext context) {
    auto& own = OwnContexts::instance();
    const MutexLock lock(own.mutex);
    for (const auto& [handle, green] : own.greens)
        if (context && green.context == context) return green.primary;
    return context;
}

bool holds_primary(int device) {
    auto& own = OwnContexts::instance();
    const MutexLock lock(own.mutex);
    const auto held = own.primaries.find(device);
    return held != own.primaries.end() && held->second != 0;
}

std::vector<CUcontext> own_contexts_of(int device) {
    auto& own = OwnContexts::instance();
    const MutexLock lock(own.mutex);
    std::vector<CUcontext> contexts;
    for (const auto& [context, its_device] : own.contexts)
        if (its_device == device) contexts.push_back(context);
    return contexts;
}

bool enter_primary_context() noexcept {
    bool has_entered = false;
    ignoring_errors([&] {
        const auto with = memory();
        // Whoever ends a context may wait for work that needs what our caller holds.
        const std::shared_lock contexts(contexts_mutex(), std::try_to_lock);
        if (!with || !contexts) return;
        const auto enter = [&](int device) {
            const auto primary = primary_of(with->api(), device);
            return primary.context && with->api().cuCtxPushCurrent(primary.context) == CUDA_SUCCESS;
        };
        for (int device = 0; device < driver::k_max_devices && !has_entered; ++device)
            has_entered = holds_primary(device) && enter(device);
        // What a program that is not intercepted holds is not in the books.
        for (int device = 0; device < driver::k_max_devices && !has_entered; ++device)
            has_entered = enter(device);
    });
    return has_entered;
}

std::vector<CUcontext> own_contexts() noexcept {
    std::vector<CUcontext> contexts;
    ignoring_errors([&] {
        auto& own = OwnContexts::instance();
        const MutexLock lock(own.mutex);
        for (const auto& [context, device] : own.contexts) contexts.push_back(context);
    });
    return contexts;
}

void note_work_on(ProgramMemory& memory, int device, PendingWork& work) {
    const auto& api = memory.api();
    CUcontext current = nullptr;
    if (current_device(memory) == device && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS) work.note(current);
    unsigned flags = 0;
    int is_active = 0;
    if (api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS && is_active) {
        const auto primary = driver::PrimaryContext::retain(api, device);
        if (primary && holds_primary(device)) work.note(primary->get());
        if (primary && !holds_primary(device)) work.wait_for(primary->get()); // it ends when we let go
    }
    for (auto* const context : own_contexts_of(device)) work.note(context);
}

} // namespace gpu_sleep::agent::intercepted
