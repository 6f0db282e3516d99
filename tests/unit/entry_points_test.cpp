// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeps the tests from being built while a call that cuda.h declares has no class. The product is built
// without it.

#include "declared_entry_points.hpp"

#ifdef GPU_SLEEP_UNCLASSED
static_assert(false, "cuda.h declares " GPU_SLEEP_UNCLASSED
                     ", of no class: write each into agent/hooks/entry_points.txt, under what it does");
#endif
