// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Who asks: what they are told while a request is under way, and how they withdraw it.

#pragma once

#include "control/targets.hpp"

namespace gpu_sleep::control {

using peers::Interruptions;

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

} // namespace gpu_sleep::control
