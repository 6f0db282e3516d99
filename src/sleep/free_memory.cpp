// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking devices for free memory.

#include "sleep/free_memory.hpp"

#include "base/units.hpp"

#include <fmt/format.h>

namespace gpu_sleep::sleep {

Result<void> check_free_memory(const std::vector<ledger::Backing*>& backings, int device,
                               const driver::MemoryInfo& memory) {
    Bytes needed = 0;
    for (const auto* backing : backings) needed += backing->handle == 0 ? backing->bytes : 0;
    if (needed <= memory.free) return {};
    return make_error(ErrorCode::out_of_device_memory, "waking needs {} on GPU {}, and {} of {} are free",
                      format_bytes(needed), device, format_bytes(memory.free), format_bytes(memory.total));
}

Result<void> check_free_memory(const driver::Api& api, const WakePlan& plan) {
    if (plan.is_empty()) return {};
    const auto contexts = driver::active_contexts(api);
    if (!contexts) return contexts.error();
    for (const auto& context : *contexts) {
        const auto part = plan.devices.find(context.device());
        if (part == plan.devices.end()) continue;
        const driver::CurrentContext current(api, context.get());
        const auto memory = driver::memory_info(api);
        if (!memory) return memory.error();
        GPU_SLEEP_TRY(check_free_memory(part->second, part->first, *memory));
    }
    return {};
}

} // namespace gpu_sleep::sleep
