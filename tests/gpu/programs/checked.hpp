// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Calls of the driver and of the runtime that must succeed.

#pragma once

#include <cstdio>
#include <cstdlib>

/// Ends the program when `call`, of either, returns an error.
#define CHECKED(call)                                                                                        \
    do {                                                                                                     \
        if (const auto status = (call); static_cast<int>(status) != 0) {                                     \
            std::fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, static_cast<int>(status));    \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } while (false)
