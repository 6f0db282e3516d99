// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// libgpu-sleep-login.so: what the login environment preloads into every program (gpu-enable). It
// loads the agent once the program turns to libcuda, and passes the program's calls and look-ups on to it.
// Where the agent is not wanted, or cannot be loaded, they go where they would go without it. It needs no
// library and no version of one: whatever a container has for a C library, no program fails for it. A
// function that is missing is null here.

#include "declared_entry_points.hpp"
#include "freestanding/elf_symbols.hpp"
#include "freestanding/text.hpp"
#include "login/environment.hpp"
#include "login/wanted.hpp"

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#define GPU_SLEEP_HIDDEN __attribute__((visibility("hidden"), used))

extern "C" {
__attribute__((weak)) void* dlopen(const char* file, int mode);
__attribute__((weak)) void* dlvsym(void* handle, const char* name, const char* version);
__attribute__((weak)) char* dlerror();
__attribute__((weak)) int dl_iterate_phdr(int (*visit)(dl_phdr_info*, std::size_t, void*), void* data);
__attribute__((weak)) const char* gnu_get_libc_version();
// From the linker: where this library begins and ends.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));
}

namespace gpu_sleep::login {
namespace {

using Lookup = void* (*)(void* handle, const char* name);

// Of dlfcn.h, which would declare the functions above as always there.
constexpr int k_now = 2, k_no_load = 4, k_global = 0x100;
void* const k_next = reinterpret_cast<void*>(-1);

constexpr const char* k_driver = "libcuda.so.1";
constexpr const char* k_agent = "libgpu-sleep-agent.so.0";
constexpr const char* k_agent_beside = "$ORIGIN/libgpu-sleep-agent.so.0";

// What is said of an entry point, unless it only asks.
#define GPU_SLEEP_IF_own(said) said
#define GPU_SLEEP_IF_passing(said) said
#define GPU_SLEEP_IF_forwarding(said) said
#define GPU_SLEEP_IF_asking(said)

constexpr const char* k_names =
#define GPU_SLEEP_NAME(name, touch, hook) GPU_SLEEP_IF_##hook(#name "\0")
    GPU_SLEEP_DECLARED(GPU_SLEEP_NAME);
#undef GPU_SLEEP_NAME

enum class Agent : int { undecided, absent, present };
Agent g_agent = Agent::undecided;
Lookup g_real_dlsym = nullptr;  ///< the C library's
Lookup g_agent_dlsym = nullptr; ///< once the agent is present
void* g_driver = nullptr;

template <class T>
T load(const T& value) {
    T now;
    __atomic_load(&value, &now, __ATOMIC_ACQUIRE);
    return now;
}
template <class T>
void store(T& value, T now) {
    __atomic_store(&value, &now, __ATOMIC_RELEASE);
}

bool is_ours(const void* address) {
    return address >= static_cast<const void*>(__ehdr_start) && address < static_cast<const void*>(_end);
}

int find_dlsym_in(dl_phdr_info* library, std::size_t /*size*/, void* found) {
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const auto base = library->dlpi_addr;
        const auto* const dynamic = reinterpret_cast<const ElfW(Dyn)*>(base + library->dlpi_phdr[i].p_vaddr);
        const auto* const symbol = freestanding::Symbols(base, dynamic).find("dlsym");
        if (!symbol) continue;
        auto* const address = reinterpret_cast<void*>(base + symbol->st_value);
        if (is_ours(address)) continue;
        *static_cast<void**>(found) = address;
        return 1;
    }
    return 0;
}

/// The C library's dlsym. Null where there is none: then nobody calls ours.
Lookup real_dlsym() {
    if (const auto known = load(g_real_dlsym)) return known;
    void* found = nullptr;
    if (dlvsym) { // the versions under which glibc has it
        for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"})
            if (!found) found = dlvsym(k_next, "dlsym", version);
    }
    if (!found && dl_iterate_phdr) dl_iterate_phdr(find_dlsym_in, &found); // another C library
    const auto real = reinterpret_cast<Lookup>(found);
    if (real) store(g_real_dlsym, real);
    return real;
}

/// libcuda if it is loaded.
void* driver() {
    if (auto* const known = load(g_driver)) return known;
    if (!dlopen) return nullptr;
    auto* const found = dlopen(k_driver, k_now | k_no_load);
    if (found) store(g_driver, found); // and never closed
    return found;
}

Lookup load_agent(Lookup real) {
    if (!dlopen || !is_wanted()) return nullptr;
    auto* agent = dlopen(k_agent, k_now | k_no_load); // a program's own
    if (!agent) agent = dlopen(k_agent_beside, k_now | k_global);
    const auto found = agent ? reinterpret_cast<Lookup>(real(agent, "dlsym")) : nullptr;
    if (!found && dlerror) dlerror(); // it is not the program's
    return found;
}

/// Whether the agent is there, which is decided at the first question. Threads that ask at once come to the
/// same.
bool has_agent(Lookup real) {
    const auto known = load(g_agent);
    if (known != Agent::undecided) return known == Agent::present;
    const auto found = load_agent(real);
    if (found) store(g_agent_dlsym, found);
    store(g_agent, found ? Agent::present : Agent::absent);
    return found != nullptr;
}

/// What the program is to call for the driver's `name`.
void* resolve(Lookup real, void* library, const char* name) {
    return has_agent(real) ? load(g_agent_dlsym)(library, name) : real(library, name);
}

/// Stands for each function that the driver lacks: CUDA_ERROR_NOT_FOUND.
int answer_for_missing() {
    return 500;
}

bool is_entry_point(const char* name) {
    return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

} // namespace

/// The answer to a look-up: without `is_final`, `address` is the dlsym to jump to, so that it sees its true
/// caller.
struct Answer {
    void* address;
    std::uintptr_t is_final;
};

extern "C" GPU_SLEEP_HIDDEN Answer gpu_sleep_login_look_up(void* handle, const char* name) {
    const auto real = real_dlsym();
    if (!real) return {nullptr, 1};
    const Answer ask_the_real_one{reinterpret_cast<void*>(real), 0};
    if (!name || !is_entry_point(name)) return ask_the_real_one;
    void* const address = real(handle, name);
    void* const library = driver();
    // What this library exports must not make a program believe that there is a driver, or a newer one.
    if (address && is_ours(address)) return {library ? resolve(real, library, name) : real(k_next, name), 1};
    if (!address || !library || !has_agent(real)) return ask_the_real_one;
    // What follows this library, or the program, in the order of look-ups does not follow the agent.
    if (handle == k_next && address == real(library, name)) return {resolve(real, library, name), 1};
    return {reinterpret_cast<void*>(load(g_agent_dlsym)), 0};
}

/// What the entry point at `index` of the list is; kept in `slot` once that is settled.
extern "C" GPU_SLEEP_HIDDEN void* gpu_sleep_login_resolve(std::size_t index, void** slot) {
    const auto real = real_dlsym();
    void* const library = real ? driver() : nullptr;
    const char* name = k_names;
    for (; index > 0; --index)
        while (*name++ != '\0') {
        }
    void* const found = library ? resolve(real, library, name) : nullptr;
    if (found) store(*slot, found);
    return found ? found : reinterpret_cast<void*>(&answer_for_missing);
}

/// The address sanitizer, where a program brings it as a library, ends a program in which another library
/// comes first, unless it is told that this is meant. A program's own function of this name comes before
/// ours.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() {
    return "verify_asan_link_order=0";
}

/// The symbol with a version; see exports.map.
extern "C" __attribute__((visibility("default"), used)) const char gpu_sleep_login_library = 1;

namespace {

/// What containers are entered with does not hand on the path of a library that they may lack: their loader
/// would complain to every program. glibc gives constructors the arguments of main; another C library gives
/// none, but is ready by now.
__attribute__((constructor)) void begin(int /*argc*/, char** /*argv*/, char** variables) {
    keep_from_containers(gnu_get_libc_version ? variables : environ);
}

} // namespace
} // namespace gpu_sleep::login

// dlsym for the whole program. The look-up says where to jump to, for most names at once.
#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call gpu_sleep_login_look_up
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rdx, %rdx
    jnz 1f
    jmp *%rax
1:  ret
    .cfi_endproc
    .size dlsym, .-dlsym

    .local gpu_sleep_login_first_call
    .type gpu_sleep_login_first_call, @function
gpu_sleep_login_first_call: # %rax: the index, %r11: its slot; all that carries an argument is kept
    .cfi_startproc
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    subq $136, %rsp
    .cfi_adjust_cfa_offset 184
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movq %rax, %rdi
    movq %r11, %rsi
    call gpu_sleep_login_resolve
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $136, %rsp
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    .cfi_adjust_cfa_offset -184
    jmp *%rax
    .cfi_endproc
    .size gpu_sleep_login_first_call, .-gpu_sleep_login_first_call

    .set gpu_sleep_login_index, 0
)");
#define GPU_SLEEP_EXPORT(name)                                                                               \
    ".local gpu_sleep_login_slot_" #name "\n.comm gpu_sleep_login_slot_" #name ",8,8\n"                      \
    ".globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n"                             \
    "leaq gpu_sleep_login_slot_" #name "(%rip), %r11\nmovq (%r11), %rax\n"                                   \
    "testq %rax, %rax\njz 1f\njmp *%rax\n"                                                                   \
    "1: movl $gpu_sleep_login_index, %eax\njmp gpu_sleep_login_first_call\n.cfi_endproc\n"                   \
    ".size " #name ", .-" #name "\n.set gpu_sleep_login_index, gpu_sleep_login_index + 1\n"
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    stp x0, x1, [sp, #16]
    bl gpu_sleep_login_look_up
    mov x9, x0
    mov x10, x1
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    cbnz x10, 1f
    br x9
1:  mov x0, x9
    ret
    .cfi_endproc
    .size dlsym, .-dlsym

    .local gpu_sleep_login_first_call
    .type gpu_sleep_login_first_call, %function
gpu_sleep_login_first_call: // x17: the index, x16: its slot; all that carries an argument is kept
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_adjust_cfa_offset 224
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov x0, x17
    mov x1, x16
    bl gpu_sleep_login_resolve
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_adjust_cfa_offset -224
    br x16
    .cfi_endproc
    .size gpu_sleep_login_first_call, .-gpu_sleep_login_first_call

    .set gpu_sleep_login_index, 0
)");
#define GPU_SLEEP_EXPORT(name)                                                                               \
    ".local gpu_sleep_login_slot_" #name "\n.comm gpu_sleep_login_slot_" #name ",8,8\n"                      \
    ".globl " #name "\n.type " #name ", %function\n" #name ":\n.cfi_startproc\n"                             \
    "adrp x16, gpu_sleep_login_slot_" #name "\nadd x16, x16, :lo12:gpu_sleep_login_slot_" #name "\n"         \
    "ldr x17, [x16]\ncbz x17, 1f\nbr x17\n"                                                                  \
    "1: mov x17, #gpu_sleep_login_index\nb gpu_sleep_login_first_call\n.cfi_endproc\n"                       \
    ".size " #name ", .-" #name "\n.set gpu_sleep_login_index, gpu_sleep_login_index + 1\n"
#else
#error "the login environment is for x86-64 and arm64 only"
#endif

// The exported symbols, for programs that are linked to libcuda, in the order of k_names.
#define GPU_SLEEP_EXPORT_TOUCHING(name, touch, hook) GPU_SLEEP_IF_##hook(GPU_SLEEP_EXPORT(name))
asm(GPU_SLEEP_DECLARED(GPU_SLEEP_EXPORT_TOUCHING));
