// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who asks: what they are told while a request is under way, and how they withdraw it.

#pragma once

#include "control/targets.hpp"

namespace gpu_sleep::control {

/// Hears of the processes that are asked, on the thread that asks. This one takes no notice.
class Listener {
public:
    Listener() = default;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    virtual ~Listener() = default;

    virtual void progress(const Process& /*process*/, const model::Progress& /*progress*/) {}
    /// An interruption comes too late for the process.
    virtual void past_return(const Process& /*process*/) {}
    /// Once for each process.
    virtual void ended(const Outcome& /*outcome*/) {}
};

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
