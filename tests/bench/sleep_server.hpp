// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The process that sleep_bench puts to sleep: it holds memory, and answers questions about the device.

#pragma once

namespace gpu_sleep::bench {

/// Answers lines of standard input on standard output, until `quit` or the end of input, and returns the exit
/// status. Sizes are in bytes; what fails is answered by "error: " and a sentence.
///
///     hold DEVICE TAG RETENTION BYTES...   allocates and fills memory of the agent; RETENTION as in
///     gpu_sleep.h hold-zeros TAG BYTES...       allocates memory of the agent, and sets it to zero change
///     NTH                    changes a word in every NTH MiB of what `hold` has filled hold-plainly BYTES...
///     allocates and fills memory with the driver alone per-tensor HOST               HOST is `retained` or
///     `given_back`: from now on tensors are of such a PerTensor hold-tensors CONTENTS BYTES...   CONTENTS is
///     `kept` or `dropped`; fills them sleep-tensors, wake-tensors   the seconds that this took check-tensors
///     fails if the contents of the tensors that are kept are not what they were launch COUNT seconds for
///     each of so many launches that do nothing read COUNT                    seconds for each of so many
///     passes over what `hold` has filled memory                        "FREE TOTAL" of the device, as the
///     driver says device                        "real COUNT NAME" or "simulated COUNT NAME": how many there
///     are, and the first link                          "TO_HOST TO_DEVICE": page-locked copies, in bytes a
///     second
int serve();

} // namespace gpu_sleep::bench
