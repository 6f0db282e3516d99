// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate at the end of an operation.

#pragma once

#include "operations/process_status.hpp"
#include "program_memory/program_memory.hpp"

namespace gpu_sleep::agent::operations {

/// Makes the gate fit what sleeps. Nothing where the program's calls are not intercepted.
void settle_gate(ProgramMemory& memory, ProcessStatus& status) noexcept;

/// Does so once an operation is over: by settle(), or else when destroyed, however the operation ends.
class GateSettler {
public:
    GateSettler(ProgramMemory& memory, ProcessStatus& status) noexcept : memory_(memory), status_(status) {}
    GateSettler(const GateSettler&) = delete;
    GateSettler& operator=(const GateSettler&) = delete;
    ~GateSettler() {
        if (!is_settled_) settle();
    }

    void settle() noexcept {
        is_settled_ = true;
        settle_gate(memory_, status_);
    }

private:
    ProgramMemory& memory_;
    ProcessStatus& status_;
    bool is_settled_ = false;
};

} // namespace gpu_sleep::agent::operations
