// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the program gets when it looks a symbol of the driver up: dlsym, cuGetProcAddress, and the exported
// symbols.

#include "base/exported_jump.hpp"
#include "base/symbols.hpp"
#include "hooks/driver_table.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>

namespace gpu_sleep::hooks {
namespace {

bool is_name(const char* name, const char* wanted) noexcept {
    return std::strcmp(name, wanted) == 0;
}

} // namespace

// The answer to a look-up: `is_final` false means that the real dlsym is to be asked, by a jump to it, so
// that it sees its true caller.
struct Answer {
    void* address;
    std::uintptr_t is_final;
};

extern "C" {

__attribute__((visibility("hidden"), used)) SymbolLookup gpu_sleep_real_dlsym = nullptr;

__attribute__((visibility("hidden"), used)) void gpu_sleep_find_real_dlsym() {
    gpu_sleep_real_dlsym = real_dlsym();
}

__attribute__((visibility("hidden"), used)) Answer gpu_sleep_look_up(void* handle,
                                                                     const char* name) noexcept {
    constexpr Answer k_ask_the_real_one{nullptr, 0};
    if (!gpu_sleep_real_dlsym) gpu_sleep_find_real_dlsym();
    if (!intercepts() && (is_name(name, "cuInit") || is_name(name, "cuGetProcAddress_v2")))
        check_interception_setting();
    if (!intercepts() || !gpu_sleep_real_dlsym) return k_ask_the_real_one;
    void* const address = gpu_sleep_real_dlsym(handle, name);
    if (!address) return k_ask_the_real_one;
    void* const stand_in = stand_in_for(address, name);
    if (stand_in != address) return {stand_in, 1};
    // Our own exported symbols must not make a program believe that there is a driver, or that it is newer
    // than it is. The look-up that fails leaves the message that dlerror() gives.
    void* const driver = loaded_driver();
    if (is_ours(address) && !find_symbol(driver ? driver : RTLD_NEXT, name)) return {nullptr, 1};
    return k_ask_the_real_one;
}

} // extern "C"

// dlsym for the whole program. Names that do not begin with "cu" go straight to the real one; this runs
// before anything of the C++ runtime, or of a sanitizer, is ready.
#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    testq %rsi, %rsi
    jz 2f
    cmpb $'c', (%rsi)
    jne 2f
    cmpb $'u', 1(%rsi)
    jne 2f
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call gpu_sleep_look_up
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rdx, %rdx
    jz 1f
    ret
1:  jmp *gpu_sleep_real_dlsym(%rip)
2:  cmpq $0, gpu_sleep_real_dlsym(%rip)
    jne 1b
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call gpu_sleep_find_real_dlsym
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp 1b
    .cfi_endproc
    .size dlsym, .-dlsym
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    cbz x1, 2f
    ldrb w9, [x1]
    cmp w9, #'c'
    b.ne 2f
    ldrb w9, [x1, #1]
    cmp w9, #'u'
    b.ne 2f
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    stp x0, x1, [sp, #16]
    bl gpu_sleep_look_up
    mov x9, x0
    mov x10, x1
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    cbz x10, 1f
    mov x0, x9
    ret
1:  adrp x9, gpu_sleep_real_dlsym
    ldr x9, [x9, :lo12:gpu_sleep_real_dlsym]
    br x9
2:  adrp x9, gpu_sleep_real_dlsym
    ldr x9, [x9, :lo12:gpu_sleep_real_dlsym]
    cbnz x9, 1b
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    stp x0, x1, [sp, #16]
    bl gpu_sleep_find_real_dlsym
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    b 1b
    .cfi_endproc
    .size dlsym, .-dlsym
)");
#else
#error "dlsym is intercepted on x86-64 and on arm64 only"
#endif

namespace own {

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* found) {
    const auto status = real<Entry::cuGetProcAddress_v2>()(symbol, function, version, flags, found);
    // The driver answers with success, too, where it found nothing: then the pointer is null, or, of some
    // drivers, as it was.
    const bool is_found = status == CUDA_SUCCESS && (!found || *found == CU_GET_PROC_ADDRESS_SUCCESS);
    if (is_found && function && *function) *function = stand_in_for(*function, symbol, version);
    return status;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
    const auto status = real<Entry::cuGetProcAddress>()(symbol, function, version, flags);
    if (status == CUDA_SUCCESS && function && *function) *function = stand_in_for(*function, symbol, version);
    return status;
}

} // namespace own

// The exported symbols, for programs that are linked to libcuda: each jumps to what stands in for it, which
// driver_table.cpp has.
#define GPU_SLEEP_EXPORT(name, touch, hook) GPU_SLEEP_EXPORTED_JUMP(name, gpu_sleep_hook_##name)
GPU_SLEEP_DECLARED(GPU_SLEEP_EXPORT)

} // namespace gpu_sleep::hooks
