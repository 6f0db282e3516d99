// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The parts of the agent that operations work with.

#pragma once

#include "callbacks/callbacks.hpp"
#include "common/interception.hpp"
#include "operations/deep_sleep.hpp"
#include "operations/idle_watch.hpp"
#include "operations/preparing.hpp"
#include "operations/process_status.hpp"
#include "operations/room_making.hpp"
#include "operations/transitions.hpp"
#include "operations/turnstile.hpp"
#include "program_memory/program_memory.hpp"
#include "torch/torch_trim.hpp"

#include <string>
#include <utility>

namespace gpu_sleep::agent::operations {

/// One for each process. Made by its owner, who has them all live as long as the process.
struct Parts {
    ProgramMemory& memory;
    RetiredContents retired;
    IdleWatch idle;
    Inhibitors inhibitors;
    KnownDevices devices;
    DeepSleep deep;
    ProcessStatus status;
    Transitions transitions;
    JournalLines journal;
    Turnstile turnstile;
    Callbacks callbacks;
    torch::TorchTrim torch_trim; ///< used by one operation at a time
    Preparation preparation;
    GpuLines lines;
    RoomMaking room;
    Clock::time_point next_look_at_host{}; ///< for what is retained; on the operations thread
    Clock::time_point next_giving_back{};  ///< or pinning, of a little, while the program works; likewise
    bool gives_back_at_once = false;       ///< the host is short of memory; likewise
    /// Called before the gate stays shut: has the agent hear of the process's end before all others.
    void (*const come_first_at_exit)() noexcept;

    Parts(ProgramMemory& its_memory, std::string name, std::string journal_socket,
          void (*comes_first)() noexcept)
        : memory(its_memory), retired(its_memory), devices(its_memory), deep(its_memory, devices),
          status(its_memory, retired, idle, inhibitors, devices, deep, std::move(name)),
          journal(std::move(journal_socket)), room(lines, status), come_first_at_exit(comes_first) {}

    /// Whether nobody keeps the program's work from what sleeps: neither the gate nor a callback.
    [[nodiscard]] bool is_unguarded() noexcept { return !intercepts() && !callbacks.has_before_sleep(); }
};

} // namespace gpu_sleep::agent::operations
