// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When contents may be given back. At the end of the process the driver takes everything, and unpins no more.

#include "operations/giving_back.hpp"

#include "common/interception.hpp"
#include "intercepted/contexts_lock.hpp"
#include "intercepted/trimming.hpp"
#include "program_memory/retained_contents.hpp"

#include <mutex>
#include <shared_mutex>
#include <thread>

namespace gpu_sleep::agent::operations {

bool tidy(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    // While all sleeps somebody else may have locked the driver: what can wait does.
    const auto state = parts.status.state();
    const bool is_any_awake = state == model::State::awake || state == model::State::partial;
    if (intercepts() && is_any_awake) intercepted::give_back_due();
    if (give_way(parts.memory)) parts.memory.tidy_within(k_between_looks_at_host);
    parts.retired.collect();
    // A piece is unpinned in a context, which must not end just then. Who ends one may wait for the device.
    const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
    if (!contexts) {
        std::this_thread::sleep_for(Milliseconds(1));
        return parts.retired.has_waste();
    }
    return parts.retired.give_back_some();
}

bool give_back_files(Parts& parts) {
    if (parts.memory.is_ending()) return false;
    parts.retired.collect();
    return parts.retired.give_back_files();
}

bool give_back_all(Parts& parts) {
    if (!parts.memory.may_call_driver()) return false;
    bool has_any = parts.memory.with_lock([](LockedMemory& locked) { return locked.trim_retained(0) > 0; });
    parts.retired.collect();
    has_any |= parts.retired.has_any();
    while (tidy(parts)) has_any = true;
    return has_any;
}

} // namespace gpu_sleep::agent::operations
