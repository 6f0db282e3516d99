// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The stand-ins of unknown entry points: a fixed number of jumps, each with a mark of its own.

#include "intercepted/unknown_calls.hpp"

#include "base/thread_safety.hpp"
#include "gate/gate.hpp"
#include "intercepted/refusal.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

// How many can be told apart. CUDA 13.0's runtime asks for 33 that are not in cuda.h, for OpenGL, EGL and
// VDPAU; each release since 12.0 has added at most 40.
#define GPU_SLEEP_UNKNOWN_COUNT 256
#define GPU_SLEEP_TEXT_OF(value) #value
#define GPU_SLEEP_TEXT(value) GPU_SLEEP_TEXT_OF(value)

extern "C" {

/// What each stand-in jumps to, and whether it was called. Read by the assembly below.
__attribute__((visibility("hidden"), used)) constinit std::array<std::atomic<void*>, GPU_SLEEP_UNKNOWN_COUNT>
    gpu_sleep_unknown_targets{};
__attribute__((visibility("hidden"),
               used)) constinit std::array<std::atomic<std::uint8_t>, GPU_SLEEP_UNKNOWN_COUNT>
    gpu_sleep_unknown_called{};

/// The stand-ins, one after the other.
__attribute__((visibility("hidden"))) extern const char gpu_sleep_unknown_stand_ins[];

} // extern "C"

namespace gpu_sleep::agent::intercepted {
namespace {

constexpr std::size_t k_count = GPU_SLEEP_UNKNOWN_COUNT;
constexpr std::size_t k_stand_in_bytes = 32; ///< as the assembly aligns them

using Name = std::array<char, 64>;

Mutex g_mutex;                                 ///< held over a few words alone, while one is added
constinit std::array<Name, k_count> g_names{}; ///< of those below the count; not changed later
constinit std::atomic<std::size_t> g_used{0};
constinit std::atomic<bool> g_is_full{false}; ///< some have the driver's own, and what they do is not known

} // namespace

void* stand_in_for_unknown(void* address, const char* name) noexcept {
    const MutexLock lock(g_mutex);
    const auto used = g_used.load(std::memory_order_relaxed);
    std::size_t i = 0;
    while (i < used && gpu_sleep_unknown_targets[i] != address) ++i;
    if (i == k_count) {
        g_is_full = true;
        return address;
    }
    if (i == used) {
        std::strncpy(g_names[i].data(), name, g_names[i].size() - 1);
        gpu_sleep_unknown_targets[i] = address;
        g_used.store(used + 1, std::memory_order_release);
    }
    return const_cast<char*>(gpu_sleep_unknown_stand_ins + i * k_stand_in_bytes);
}

std::vector<std::string> called_unknown() {
    std::vector<std::string> called;
    for (std::size_t i = 0; i < g_used.load(std::memory_order_acquire); ++i)
        if (gpu_sleep_unknown_called[i] != 0) called.emplace_back(g_names[i].data());
    if (g_is_full) called.emplace_back("others");
    return called;
}

/// The first call of a stand-in, before it is passed on; not success: it is refused with that.
/// It is marked inside the gate: who closes it, and looks then, sees the mark.
extern "C" __attribute__((visibility("hidden"), used)) CUresult
gpu_sleep_unknown_first_call(std::uint32_t which) noexcept {
    const gate::Passage passage(gate::Touch::submits, g_names[which].data());
    if (!passage.admitted()) return refused();
    gpu_sleep_unknown_called[which] = 1;
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::agent::intercepted

// Every register and the stack are as the caller left them when the driver's function is reached.
#if defined(__x86_64__)
asm(R"(
    .text
    .p2align 5
    .type gpu_sleep_unknown_stand_ins, @function
    .hidden gpu_sleep_unknown_stand_ins
    .globl gpu_sleep_unknown_stand_ins
gpu_sleep_unknown_stand_ins:
    .cfi_startproc
    .set .Lunknown, 0
    .rept )" GPU_SLEEP_TEXT(GPU_SLEEP_UNKNOWN_COUNT) R"(
    .p2align 5
    cmpb $0, gpu_sleep_unknown_called+.Lunknown(%rip)
    je 1f
    jmp *gpu_sleep_unknown_targets+8*.Lunknown(%rip)
1:  movl $.Lunknown, %r11d
    jmp gpu_sleep_unknown_first
    .set .Lunknown, .Lunknown+1
    .endr
    .cfi_endproc
    .size gpu_sleep_unknown_stand_ins, .-gpu_sleep_unknown_stand_ins

    .type gpu_sleep_unknown_first, @function
gpu_sleep_unknown_first:
    .cfi_startproc
    pushq %rax
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %r11
    .cfi_adjust_cfa_offset 64
    subq $136, %rsp
    .cfi_adjust_cfa_offset 136
    movaps %xmm0, (%rsp)
    movaps %xmm1, 16(%rsp)
    movaps %xmm2, 32(%rsp)
    movaps %xmm3, 48(%rsp)
    movaps %xmm4, 64(%rsp)
    movaps %xmm5, 80(%rsp)
    movaps %xmm6, 96(%rsp)
    movaps %xmm7, 112(%rsp)
    movl %r11d, %edi
    call gpu_sleep_unknown_first_call
    movl %eax, %r10d
    movaps (%rsp), %xmm0
    movaps 16(%rsp), %xmm1
    movaps 32(%rsp), %xmm2
    movaps 48(%rsp), %xmm3
    movaps 64(%rsp), %xmm4
    movaps 80(%rsp), %xmm5
    movaps 96(%rsp), %xmm6
    movaps 112(%rsp), %xmm7
    addq $136, %rsp
    .cfi_adjust_cfa_offset -136
    popq %r11
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rax
    .cfi_adjust_cfa_offset -64
    testl %r10d, %r10d
    jnz 1f
    leaq gpu_sleep_unknown_targets(%rip), %r10
    jmp *(%r10,%r11,8)
1:  movl %r10d, %eax
    ret
    .cfi_endproc
    .size gpu_sleep_unknown_first, .-gpu_sleep_unknown_first
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .p2align 5
    .type gpu_sleep_unknown_stand_ins, %function
    .hidden gpu_sleep_unknown_stand_ins
    .globl gpu_sleep_unknown_stand_ins
gpu_sleep_unknown_stand_ins:
    .cfi_startproc
    .set .Lunknown, 0
    .rept )" GPU_SLEEP_TEXT(GPU_SLEEP_UNKNOWN_COUNT) R"(
    .p2align 5
    adrp x16, gpu_sleep_unknown_called+.Lunknown
    ldrb w16, [x16, :lo12:gpu_sleep_unknown_called+.Lunknown]
    mov w17, #.Lunknown
    cbz w16, gpu_sleep_unknown_first
    adrp x16, gpu_sleep_unknown_targets+8*.Lunknown
    ldr x16, [x16, :lo12:gpu_sleep_unknown_targets+8*.Lunknown]
    br x16
    .set .Lunknown, .Lunknown+1
    .endr
    .cfi_endproc
    .size gpu_sleep_unknown_stand_ins, .-gpu_sleep_unknown_stand_ins

    .type gpu_sleep_unknown_first, %function
gpu_sleep_unknown_first:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_adjust_cfa_offset 224
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    stp x8, x17, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w17
    bl gpu_sleep_unknown_first_call
    mov w9, w0
    ldp q6, q7, [sp, #192]
    ldp q4, q5, [sp, #160]
    ldp q2, q3, [sp, #128]
    ldp q0, q1, [sp, #96]
    ldp x8, x17, [sp, #80]
    ldp x6, x7, [sp, #64]
    ldp x4, x5, [sp, #48]
    ldp x2, x3, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #224
    .cfi_adjust_cfa_offset -224
    cbnz w9, 1f
    adrp x16, gpu_sleep_unknown_targets
    add x16, x16, :lo12:gpu_sleep_unknown_targets
    ldr x16, [x16, x17, lsl #3]
    br x16
1:  mov w0, w9
    ret
    .cfi_endproc
    .size gpu_sleep_unknown_first, .-gpu_sleep_unknown_first
)");
#else
#error "unknown entry points are passed on for x86-64 and arm64 only"
#endif
