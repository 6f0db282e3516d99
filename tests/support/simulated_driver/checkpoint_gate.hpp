// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a checkpoint waits for in the process that it is about, and what waits there for its end.

#pragma once

namespace gpu_sleep::sim {

/// A driver call of this process under way. It begins once no other process holds this one's calls. Calls may
/// nest.
class CallUnderWay {
public:
    CallUnderWay() noexcept;
    ~CallUnderWay();
    CallUnderWay(const CallUnderWay&) = delete;
    CallUnderWay& operator=(const CallUnderWay&) = delete;
};

/// Counts what streams have to do, for locks wait until it is done.
void note_work_submitted() noexcept;
void note_work_done() noexcept;

} // namespace gpu_sleep::sim
