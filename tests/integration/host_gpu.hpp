// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the host program does with its GPUs: memory whose bytes it can check, a captured graph, a long kernel.

#pragma once

#include "base/error.hpp"
#include "gpu_sleep/gpu_sleep.h"

#include <cuda.h>

#include <cstddef>

namespace gpu_sleep::test {

/// What a call of the driver, or of the agent, reports. Errors: driver_failed; that of the agent.
[[nodiscard]] Result<void> checked(CUresult result, const char* call);
[[nodiscard]] Result<void> checked(gpu_sleep_status status);

/// Makes the primary context of `device` current to this thread; each is retained once. Errors:
/// driver_failed.
[[nodiscard]] Result<void> use_device(int device);

/// Memory of the agent. Its bytes are a function of the seed and of their place, never zero for long.
struct Allocation {
    void* pointer = nullptr;
    std::size_t bytes = 0; ///< a multiple of 8
    int device = 0;
    std::string tag;
    std::uint64_t seed = 0;

    [[nodiscard]] CUdeviceptr address() const noexcept { return reinterpret_cast<CUdeviceptr>(pointer); }
};

/// Writes the bytes that `allocation` is to have. Errors: driver_failed.
[[nodiscard]] Result<void> fill(const Allocation& allocation);

/// Reads it: "intact" when its bytes are what fill() wrote, "zero", or "differs". Errors: driver_failed.
[[nodiscard]] Result<std::string> compare(const Allocation& allocation);

/// A graph that copies one allocation to another, captured on a stream of its own, on device 0.
class Graph {
public:
    /// Opens the capture and records the copy. `flags` are those of cuStreamCreate. Errors: driver_failed.
    [[nodiscard]] Result<void> begin(unsigned flags, const Allocation& from, const Allocation& to);
    /// Closes the capture. Errors: driver_failed (something broke it).
    [[nodiscard]] Result<void> end();
    /// Runs the graph and waits for it. Errors: driver_failed.
    [[nodiscard]] Result<void> replay();

private:
    CUstream stream_ = nullptr;
    CUgraphExec executable_ = nullptr;
};

/// Starts a kernel on device 0 that runs for `milliseconds`, and does not wait for it. Errors: driver_failed.
[[nodiscard]] Result<void> spin(std::uint64_t milliseconds);

} // namespace gpu_sleep::test
