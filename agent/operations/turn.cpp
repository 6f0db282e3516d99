// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Taking turns.

#include "operations/turn.hpp"

#include "common/interception.hpp"
#include "intercepted/own_contexts.hpp"
#include "operations/giving_back.hpp"

namespace gpu_sleep::agent::operations {

Result<Turn> Turn::take(Parts& parts, bool is_sleep, Clock::time_point deadline,
                        const server::ProgressSink& progress) {
    GPU_SLEEP_TRY(parts.turnstile.enter(is_sleep, deadline, [&] {
        give_way_while_waiting(parts);
        return progress({model::Progress::Phase::waiting, 0, 0});
    }));
    return Turn(parts.turnstile);
}

std::shared_lock<std::shared_mutex> keep_contexts(bool leaves_gate) {
    return leaves_gate ? std::shared_lock(intercepted::contexts_mutex())
                       : std::shared_lock<std::shared_mutex>();
}

Error process_is_ending() {
    return make_error(ErrorCode::no_process, "the process is ending");
}

void settle_gate(ProgramMemory& memory, ProcessStatus& status) noexcept {
    if (intercepts() && !memory.settle_gate()) status.set_touch_trouble({});
}

} // namespace gpu_sleep::agent::operations
