// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How whoever asked withdraws a request that is under way.

#pragma once

namespace gpu_sleep::control {

/// What withdraws a request; by itself, nothing does. Not thread-safe.
class Interruptions {
public:
    Interruptions() = default;
    Interruptions(const Interruptions&) = delete;
    Interruptions& operator=(const Interruptions&) = delete;
    virtual ~Interruptions() = default;

    /// Readable when one has come; negative if none can.
    [[nodiscard]] virtual int fd() const noexcept { return -1; }
    virtual void take() noexcept {}
    /// Whether one was taken, or has come, and is taken now.
    [[nodiscard]] virtual bool has_come() noexcept { return false; }
};

} // namespace gpu_sleep::control
