// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The process that sleep_bench puts to sleep: it holds memory, and answers questions about the device.

#pragma once

namespace gpu_sleep::bench {

/// Answers lines of standard input on standard output, until `quit` or the end of input, and returns the exit
/// status. Sizes are in bytes; what fails is answered by "error: " and a sentence.
///
///     hold DEVICE TAG RETENTION BYTES...
///                                allocates and fills memory of the agent; RETENTION as in gpu_sleep.h
///     hold-zeros TAG BYTES...    allocates memory of the agent, and sets it to zero
///     change NTH                 changes a word in every NTH MiB of what was filled
///     hold-plainly BYTES...      allocates and fills memory with the driver alone
///     per-tensor HOST            from now on tensors are of a new PerTensor: `retained` or `given_back`
///     hold-tensors KEEP BYTES... makes tensors and fills them: `kept` or `dropped`
///     sleep-tensors              the seconds that it took; also wake-tensors
///     check-tensors              fails if tensors that are kept are not as they were filled
///     launch COUNT               seconds for each of so many launches that do nothing
///     read COUNT                 seconds for each of so many passes over what `change` changes
///     memory                     "FREE TOTAL" of the device, as the driver says
///     device                     "real COUNT NAME" or "simulated COUNT NAME": the first of so many
///     link                       "TO_HOST TO_DEVICE": page-locked copies, in bytes a second
int serve();

} // namespace gpu_sleep::bench
