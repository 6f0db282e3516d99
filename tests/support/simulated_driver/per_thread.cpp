// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The per-thread symbols of the entry points.

#include "support/simulated_driver/per_thread.hpp"

#include <array>

GPU_SLEEP_SIM_PER_THREAD(SIM_DEFINE_PER_THREAD)

std::span<const gpu_sleep::sim::Symbol> gpu_sleep::sim::per_thread_symbols() noexcept {
    static const std::array k_symbols = {GPU_SLEEP_SIM_PER_THREAD(SIM_PER_THREAD_ROW)};
    return k_symbols;
}
