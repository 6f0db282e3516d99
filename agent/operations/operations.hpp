// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The operations of this process: what they are made of, which of them a request is, and what they do about
// room on the GPUs.

#pragma once

#include "common/interception.hpp"
#include "operations/operation.hpp"

namespace gpu_sleep::agent::operations {

/// One for each process. Made by its owner, who has it live as long as the process.
class Operations {
    ProgramMemory& memory_;
    RetiredContents retired_{memory_};
    KnownDevices devices_{memory_};
    torch::TorchTrim torch_trim_;
    GpuLines lines_;

public:
    Operations(ProgramMemory& memory, std::string name, ComeFirst comes_first_at_exit)
        : memory_(memory), status(memory, retired_, idle, inhibitors, devices_, deep, std::move(name)),
          live_{callbacks, comes_first_at_exit}, sleeps_{callbacks,   idle,        inhibitors,
                                                         preparation, torch_trim_, comes_first_at_exit} {
        callbacks.while_waiting([this] { giving_back_.while_waiting(); });
    }
    /// Where they never began in a child of fork(): another thread of the parent may have held their mutexes.
    void begin_anew_in_child() noexcept {
        new (&turnstile) Turnstile;
        new (&inhibitors) Inhibitors;
    }

    /// Runs one, on the operations thread. Errors: those of the operation.
    [[nodiscard]] Result<model::Report> run(const server::Operation& operation, const server::Asking& asking);
    /// Who holds the memory that such a wake lacks. On the operations thread.
    [[nodiscard]] RoomMaking::Holders holders(model::WakeRequest request);
    /// Does a little of what nobody waits for. False when nothing is left for now. On the operations thread.
    [[nodiscard]] bool tidy();
    /// Whether nobody keeps the program's work from what sleeps: neither the gate nor a callback.
    [[nodiscard]] bool is_unguarded() noexcept { return !intercepts() && !callbacks.has_before_sleep(); }

    // What the program and its environment say to operations, and what is said of the process:
    IdleWatch idle;
    Inhibitors inhibitors;
    DeepSleep deep{memory_, devices_};
    ProcessStatus status;
    Turnstile turnstile;
    Callbacks callbacks;
    Preparation preparation;
    RoomMaking room{memory_, lines_, status};

private:
    GivingBack giving_back_{memory_, retired_, status, idle, preparation};
    const Ground ground_{memory_, status, turnstile, deep, giving_back_};
    const LiveUses live_;
    const SleepUses sleeps_;
    const WakeUses wakes_{callbacks, idle, lines_, live_};
};

} // namespace gpu_sleep::agent::operations
