// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What servers do once they have started: they shut themselves in, and give up rights; what programs do to
// descriptors: they use them up, and put files of their own in the place of others'; and reads that fail.

#pragma once

#include "support/commanded.hpp"

namespace gpu_sleep::test {

void add_process_commands(Commands& commands);

} // namespace gpu_sleep::test
