// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the host program does as a rank of a job: a loop of all-reduces with other processes, whose steps on
// the GPU wait for each other as those of NCCL do.

#pragma once

#include "support/commanded.hpp"

namespace gpu_sleep::test {

/// collective FILE RANKS RANK: begins the loop, on a thread. The ranks meet in FILE.
[[nodiscard]] Answer start_collective(Words& words);

/// collective_steps: how many this rank has submitted.
[[nodiscard]] Answer collective_steps(Words& words);

/// collective_end: all ranks end after the same step, some time from now; one of them has to be told. The
/// answer comes when this rank has: "right STEPS", or what is wrong.
[[nodiscard]] Answer end_collective(Words& words);

} // namespace gpu_sleep::test
