// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Exported functions of any signature that jump to an address.

#pragma once

#if defined(__x86_64__)
#define GPU_SLEEP_JUMP(slot) "jmp *" #slot "(%rip)\n"
#define GPU_SLEEP_FUNCTION_TYPE "@function"
#else
#define GPU_SLEEP_JUMP(slot) "adrp x16, " #slot "\n ldr x16, [x16, :lo12:" #slot "]\n br x16\n"
#define GPU_SLEEP_FUNCTION_TYPE "%function"
#endif

/// The function `name`, which jumps to what the hidden variable `slot` points to.
#define GPU_SLEEP_EXPORTED_JUMP(name, slot)                                                                  \
    asm(".pushsection .text\n.globl " #name "\n.type " #name ", " GPU_SLEEP_FUNCTION_TYPE "\n" #name         \
        ":\n.cfi_startproc\n" GPU_SLEEP_JUMP(slot) ".cfi_endproc\n.size " #name ", .-" #name                 \
                                                   "\n.popsection\n");
