// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A line in the journal for each transition of this process. gpu-sleep(7) describes the fields.

#pragma once

#include "model/model.hpp"
#include "server/line.hpp"

#include <string>
#include <string_view>
#include <utility>

namespace gpu_sleep::agent::operations {

/// Thread-safe.
class JournalLines {
public:
    /// `socket`: where the journal listens; empty: nothing is written.
    explicit JournalLines(std::string socket) : socket_(std::move(socket)) {}

    /// Writes that one ended with `outcome`, `seconds` after it was asked for. `name`: of the process; may be
    /// empty. Never waits; what cannot be written is left out.
    void write(model::Transition transition, const server::Outcome& outcome, double seconds,
               std::string_view name) const noexcept;

private:
    const std::string socket_;
};

} // namespace gpu_sleep::agent::operations
