// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The operations of this process: what they are made of, which of them a request is, and what they do about
// room on the GPUs.

#pragma once

#include "operations/live_operation.hpp"
#include "operations/operation.hpp"
#include "operations/room_making.hpp"
#include "operations/sleep_operation.hpp"
#include "operations/wake_operation.hpp"

#include <string>
#include <utility>

namespace gpu_sleep::agent::operations {

/// One for each process. Made by its owner, who has it live as long as the process.
struct Operations {
    ProgramMemory& memory;
    RetiredContents retired{memory};
    IdleWatch idle;
    Inhibitors inhibitors;
    KnownDevices devices{memory};
    DeepSleep deep{memory, devices};
    ProcessStatus status;
    Turnstile turnstile;
    Callbacks callbacks;
    torch::TorchTrim torch_trim;
    Preparation preparation;
    GivingBack giving_back{memory, retired, status, idle, preparation};
    GpuLines lines;
    RoomMaking room{lines, status};
    Ground ground;
    SleepGround sleeps{ground, idle, inhibitors, callbacks, torch_trim, preparation};
    WakeGround wakes{ground, idle, callbacks, lines};

    Operations(ProgramMemory& its_memory, std::string name, void (*comes_first_at_exit)() noexcept)
        : memory(its_memory), status(memory, retired, idle, inhibitors, devices, deep, std::move(name)),
          ground{memory, status, turnstile, deep, giving_back, comes_first_at_exit} {}

    /// Runs one, on the operations thread. Errors: those of the operation.
    [[nodiscard]] Result<model::Report> run(const server::Operation& operation,
                                            const server::ProgressSink& progress,
                                            const server::DirectiveSource& directives, server::Asker asker,
                                            Asked asked);
    /// Who holds the memory that such a wake lacks. On the operations thread.
    [[nodiscard]] RoomMaking::Holders holders(const model::WakeRequest& request);
    /// Does a little of what nobody waits for. False when nothing is left for now. On the operations thread.
    [[nodiscard]] bool tidy();

    /// Whether nobody keeps the program's work from what sleeps: neither the gate nor a callback.
    [[nodiscard]] bool is_unguarded() noexcept;
};

} // namespace gpu_sleep::agent::operations
