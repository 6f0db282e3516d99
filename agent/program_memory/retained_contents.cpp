// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking at the host's memory, and giving way.

#include "program_memory/retained_contents.hpp"

#include "contents/contents.hpp"

namespace gpu_sleep::agent {

bool give_way(ProgramMemory& memory) {
    const auto retained = [&] {
        return memory.with_lock([](const LockedMemory& locked) { return locked.retained(); });
    };
    if (retained() == 0) return false;
    const auto room = contents::room_for_retained(); // reads files: without the mutex
    memory.with_lock([&](LockedMemory& locked) { locked.trim_retained(room); });
    return retained() > 0;
}

} // namespace gpu_sleep::agent
