// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The environment of a program at its start, read and changed without the C library.

#pragma once

extern "C" {
extern char** environ __attribute__((weak)); ///< the C library's; null where it has none
}

namespace gpu_sleep::login {

/// The value of a variable, or null. `variables` may be null.
const char* variable(char** variables, const char* name);

/// Takes this library out of LD_PRELOAD in `variables` if this is a program that enters containers or other
/// roots and hands its environment on.
void keep_from_containers(char** variables);

} // namespace gpu_sleep::login
