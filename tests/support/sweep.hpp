// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Every driver call of an operation fails in turn: what the tests that do so share.

#pragma once

#include "support/catch.hpp"
#include "support/sanitized.hpp"
#include "support/simulated_driver/control.h"

namespace gpu_sleep::test {

/// How far apart the calls are that fail: 1, or GPU_SLEEP_SWEEP_STRIDE where all would take long.
inline int sweep_stride() {
    const char* const wanted = std::getenv("GPU_SLEEP_SWEEP_STRIDE");
    return std::max(1, wanted ? std::atoi(wanted) : 1);
}

/// Calls `step(call)` for one call after another, counted from 1, until it says that the operation made
/// fewer. Where calls are left out, operations that make much the same calls have others of them fail:
/// `which` of these it is.
template <class Step>
void for_each_call(Step&& step, unsigned which = 0) {
    constexpr int k_max_calls = 2000;
    int call = 1 + static_cast<int>(which) % sweep_stride();
    while (call < k_max_calls) {
        INFO("call " << call);
        if (!step(call)) return;
        call += sweep_stride();
    }
    FAIL("an operation does not come to an end");
}

/// Runs `operation` with the `call`-th driver call of `name` from now on failing with `status`, 999 being
/// CUDA_ERROR_UNKNOWN. Names that call in `failed`, which is empty where there were fewer.
template <class Operation>
auto with_driver_failure(int call, std::string_view& failed, Operation&& operation, int status = 999,
                         unsigned flags = SIM_ONCE, const char* name = "*") {
    sim_reset_counts();
    sim_fail(name, static_cast<std::uint64_t>(call), status, flags);
    auto done = operation();
    failed = sim_fault_counts().injected_failures != 0 ? sim_last_failed() : "";
    sim_clear();
    return done;
}

/// How often a test repeats what it does at random: GPU_SLEEP_TEST_ROUNDS, or as often as takes seconds.
inline int random_rounds() {
    const char* const wanted = std::getenv("GPU_SLEEP_TEST_ROUNDS");
    return wanted ? std::atoi(wanted) : is_sanitized() ? 20 : 60;
}

} // namespace gpu_sleep::test
