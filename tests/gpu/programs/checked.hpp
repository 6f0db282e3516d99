// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Calls that must succeed.

#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the program when `call`, of the driver or of one of CUDA's libraries, returns an error.
#define CHECKED(call)                                                                                        \
    do {                                                                                                     \
        if (const auto status = (call); static_cast<int>(status) != 0) {                                     \
            std::fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, static_cast<int>(status));    \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } while (false)

/// Ends the program when a system call failed.
inline int checked(long result, const char* call) {
    if (result >= 0) return static_cast<int>(result);
    std::perror(call);
    std::exit(1);
}
