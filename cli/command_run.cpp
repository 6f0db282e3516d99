// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What follows from the request that a command makes.

#include "cli/command_run.hpp"

#include <variant>

namespace gpu_sleep::cli {

Engine engine_of(std::string_view word) noexcept {
    return word == "auto" ? Engine::automatic : word == "driver" ? Engine::driver : Engine::agent;
}

bool is_sleep(const CommandRun& operation) noexcept {
    return std::holds_alternative<model::SleepRequest>(operation.request);
}

bool is_joint(const CommandRun& operation) noexcept {
    if (const auto* sleep = std::get_if<model::SleepRequest>(&operation.request)) return sleep->joint;
    return std::get<model::WakeRequest>(operation.request).joint;
}

} // namespace gpu_sleep::cli
