// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Compiled kernels carried inside the library.

#pragma once

/// Defines `symbol` outside of all namespaces as what the file `path`, a string, holds: a fat binary for
/// cuModuleLoadData, with machine code for current GPUs and PTX for later ones. A zero follows it.
#define GPU_SLEEP_KERNEL_IMAGE(symbol, path)                                                                 \
    asm(".section .rodata\n"                                                                                 \
        ".balign 16\n"                                                                                       \
        ".hidden " #symbol "\n"                                                                              \
        ".globl " #symbol "\n" #symbol ":\n"                                                                 \
        ".incbin \"" path "\"\n"                                                                             \
        ".byte 0\n"                                                                                          \
        ".previous");                                                                                        \
    extern "C" const unsigned char symbol[]
