// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Functions that forward a call to another address. Those in assembly keep every register that may carry an
// argument, and the stack, so that they forward functions of any type. dlsym has one of its own.

#pragma once

#include <cstddef>

#if defined(__x86_64__)
#define GPU_SLEEP_FUNCTION_TYPE "@function"
#define GPU_SLEEP_JUMP(slot) "jmp *" slot "(%rip)\n"
// The register of the number is free: it carries no argument.
#define GPU_SLEEP_LATE_JUMP                                                                                  \
    "movq gpu_sleep_late_slots+8*.Llate(%rip), %r11\n testq %r11, %r11\n jz 1f\n jmp *%r11\n"                \
    "1: movl $.Llate, %r11d\n jmp gpu_sleep_first_call\n .set .Llate, .Llate+1\n"
#define GPU_SLEEP_FIRST_CALL                                                                                 \
    ".irp each, rax, rdi, rsi, rdx, rcx, r8, r9\n pushq %\\each\n .endr\n"                                   \
    "subq $128, %rsp\n .cfi_adjust_cfa_offset 184\n"                                                         \
    ".irp each, 0, 1, 2, 3, 4, 5, 6, 7\n movups %xmm\\each, 16*\\each(%rsp)\n .endr\n"                       \
    "movl %r11d, %edi\n call gpu_sleep_first_called\n movq %rax, %r11\n"                                     \
    ".irp each, 0, 1, 2, 3, 4, 5, 6, 7\n movups 16*\\each(%rsp), %xmm\\each\n .endr\n"                       \
    "addq $128, %rsp\n .irp each, r9, r8, rcx, rdx, rsi, rdi, rax\n popq %\\each\n .endr\n"                  \
    ".cfi_adjust_cfa_offset -184\n jmp *%r11\n"
#elif defined(__aarch64__)
#define GPU_SLEEP_FUNCTION_TYPE "%function"
#define GPU_SLEEP_JUMP(slot) "adrp x16, " slot "\n ldr x16, [x16, :lo12:" slot "]\n br x16\n"
#define GPU_SLEEP_LATE_JUMP                                                                                  \
    "adrp x16, gpu_sleep_late_slots+8*.Llate\n ldr x16, [x16, :lo12:gpu_sleep_late_slots+8*.Llate]\n"        \
    "cbz x16, 1f\n br x16\n"                                                                                 \
    "1: mov w17, #.Llate\n b gpu_sleep_first_call\n .set .Llate, .Llate+1\n"
#define GPU_SLEEP_FIRST_CALL                                                                                 \
    "stp x29, x30, [sp, #-224]!\n .cfi_adjust_cfa_offset 224\n"                                              \
    ".irp each, 0, 1, 2, 3, 4, 5, 6, 7, 8\n str x\\each, [sp, #16+8*\\each]\n .endr\n"                       \
    ".irp each, 0, 1, 2, 3, 4, 5, 6, 7\n str q\\each, [sp, #96+16*\\each]\n .endr\n"                         \
    "mov w0, w17\n bl gpu_sleep_first_called\n mov x16, x0\n"                                                \
    ".irp each, 0, 1, 2, 3, 4, 5, 6, 7\n ldr q\\each, [sp, #96+16*\\each]\n .endr\n"                         \
    ".irp each, 0, 1, 2, 3, 4, 5, 6, 7, 8\n ldr x\\each, [sp, #16+8*\\each]\n .endr\n"                       \
    "ldp x29, x30, [sp], #224\n .cfi_adjust_cfa_offset -224\n br x16\n"
#else
#error "calls of the driver are passed on for x86-64 and arm64 only"
#endif

/// The function `name` of the instructions in `body`, for asm().
#define GPU_SLEEP_FUNCTION(name, body)                                                                       \
    ".globl " #name "\n.type " #name ", " GPU_SLEEP_FUNCTION_TYPE "\n" #name ":\n.cfi_startproc\n" body      \
    ".cfi_endproc\n.size " #name ", .-" #name "\n"

/// The function `name`, which jumps to what the hidden variable `slot` points to.
#define GPU_SLEEP_EXPORTED_JUMP(name, slot)                                                                  \
    asm(".pushsection .text\n" GPU_SLEEP_FUNCTION(name, GPU_SLEEP_JUMP(#slot)) ".popsection\n");

/// Begins the late jumps of a library, which follow and are numbered from 0. Each (GPU_SLEEP_LATE_JUMP) is at
/// most 32 bytes long, and goes where its slot points. While the slot is null, it goes where
/// gpu_sleep_first_called() says, which may fill the slot. The library defines both.
#define GPU_SLEEP_LATE_JUMPS                                                                                 \
    ".text\n.hidden gpu_sleep_first_call\n" GPU_SLEEP_FUNCTION(gpu_sleep_first_call,                         \
                                                               GPU_SLEEP_FIRST_CALL) ".set .Llate, 0\n"

#if __has_cpp_attribute(clang::musttail)
#define GPU_SLEEP_TAIL_CALL [[clang::musttail]] return
#else
#define GPU_SLEEP_TAIL_CALL                                                                                  \
    return // g++ jumps with -foptimize-sibling-calls, unless it counts or traces calls
#endif

namespace gpu_sleep::freestanding {

/// The result of a look-up: that of `ask`, unless it is null; else `address`.
struct Found {
    void* address;
    void* (*ask)(void* handle, const char* name);
};

} // namespace gpu_sleep::freestanding

extern "C" {
// Only assembly names them: their definitions say gnu::used, for a compiler that sees the whole library.
[[gnu::visibility("hidden")]] extern void* gpu_sleep_late_slots[];
[[gnu::visibility("hidden")]] void* gpu_sleep_first_called(std::size_t number) noexcept;
/// Answers dlsym for the library that defines it with GPU_SLEEP_DLSYM.
[[gnu::visibility("hidden"), gnu::noinline]] gpu_sleep::freestanding::Found
gpu_sleep_look_up(void* handle, const char* name) noexcept;
}

/// dlsym(3) for the whole program. Who is asked is jumped to, so that it sees its true caller.
#define GPU_SLEEP_DLSYM                                                                                      \
    extern "C" __attribute__((visibility("default"))) void* gpu_sleep_dlsym(void*,                           \
                                                                            const char*) asm("dlsym");       \
    extern "C" void* gpu_sleep_dlsym(void* handle, const char* name) {                                       \
        const auto found = gpu_sleep_look_up(handle, name);                                                  \
        if (!found.ask) return found.address;                                                                \
        GPU_SLEEP_TAIL_CALL found.ask(handle, name);                                                         \
    }
