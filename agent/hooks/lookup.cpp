// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking the driver's symbols up: the real ones for us, our stand-ins for the program.

#include "base/symbols.hpp"
#include "base/thread_safety.hpp"
#include "hooks/driver_table.hpp"
#include "hooks/forward.hpp"
#include "intercepted/unknown_calls.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <tuple>

namespace gpu_sleep::hooks {

std::array<std::atomic<void*>, k_entries> g_real{};

namespace {

using gate::Touch;

/// What stands in for each entry point, in their order; null for those that cuda.h lacks.
constexpr auto k_stand_ins = [] {
    std::array<void* (*)(), k_entries> made{};
#define GPU_SLEEP_STAND_IN(name, hook)                                                                       \
    made[static_cast<std::size_t>(Entry::name)] = [] { return reinterpret_cast<void*>(hook); };
#define GPU_SLEEP_OWN(name) GPU_SLEEP_STAND_IN(name, (&own::name))
#define GPU_SLEEP_SUBMITS(name) GPU_SLEEP_STAND_IN(name, (&Forward<Entry::name, Touch::submits>::call))
#define GPU_SLEEP_TAKES(name) GPU_SLEEP_STAND_IN(name, (&Forward<Entry::name, Touch::takes>::call))
    GPU_SLEEP_DECLARED_OWN_HOOKS(GPU_SLEEP_OWN)
    GPU_SLEEP_DECLARED_SUBMITTING(GPU_SLEEP_SUBMITS)
    GPU_SLEEP_DECLARED_TAKING(GPU_SLEEP_TAKES)
#undef GPU_SLEEP_OWN
#undef GPU_SLEEP_SUBMITS
#undef GPU_SLEEP_TAKES
#undef GPU_SLEEP_STAND_IN
    return made;
}();

/// What passes as it is.
constexpr const char* k_harmless[] = {
#define GPU_SLEEP_SYMBOL(name) #name,
    GPU_SLEEP_HARMLESS(GPU_SLEEP_SYMBOL)
#undef GPU_SLEEP_SYMBOL
};

/// Both sides of every entry point of the lists that this libcuda has, by its address there; one that passes
/// as it is stands in for itself. Never changed once made.
struct Table {
    struct Row {
        void* real;
        std::size_t order; ///< of two names for one address the first of the list counts
        void* stand_in;
        friend bool operator<(const Row& a, const Row& b) noexcept {
            return std::tie(a.real, a.order) < std::tie(b.real, b.order);
        }
    };
    std::array<Row, k_entries + std::size(k_harmless)> rows{};
    std::size_t count = 0;
};

std::atomic<const Table*> g_table{nullptr};

/// Looks all of them up, each under the loader's lock.
Table make_table(void* driver) noexcept {
    Table made;
    const auto add = [&](void* address, void* stand_in) {
        made.rows[made.count] = {address, made.count, stand_in};
        ++made.count;
    };
    for (std::size_t i = 0; i < k_entries; ++i) {
        void* const address = k_stand_ins[i] ? find_symbol(driver, k_symbols[i]) : nullptr;
        if (!address) continue; // an older driver, or an older cuda.h
        g_real[i].store(address, std::memory_order_relaxed);
        add(address, k_stand_ins[i]());
    }
    for (const char* symbol : k_harmless)
        if (void* const address = find_symbol(driver, symbol)) add(address, address);
    std::sort(made.rows.begin(), made.rows.begin() + static_cast<std::ptrdiff_t>(made.count));
    return made;
}

const Table* table() noexcept {
    if (const auto* made = g_table.load(std::memory_order_acquire)) return made;
    void* const driver = loaded_driver();
    if (!driver) return nullptr;
    // A thread in a library's constructor has the loader's lock, and may come here: each thread looks up for
    // itself, and who is first keeps what it found.
    const auto found = make_table(driver);
    static Mutex s_mutex; ///< held over a copy alone
    const MutexLock lock(s_mutex);
    if (const auto* made = g_table.load(std::memory_order_acquire)) return made;
    static constinit Table s_table;
    s_table = found;
    g_table.store(&s_table, std::memory_order_release);
    return &s_table;
}

/// Stands for each function that the driver lacks: a program may be linked to one weakly, and gets ours.
CUresult answer_for_missing() noexcept {
    return CUDA_ERROR_NOT_FOUND;
}

/// Whether both addresses lie in the same library.
bool are_together(const void* one, const void* other) noexcept {
    Dl_info here{};
    Dl_info there{};
    return ::dladdr(one, &here) != 0 && ::dladdr(other, &there) != 0 && here.dli_fbase == there.dli_fbase;
}

bool is_ours(const void* address) noexcept {
    return are_together(reinterpret_cast<const void*>(&loaded_driver), address);
}

/// A symbol as it is documented, without its version or that of the default stream.
constexpr std::string_view documented(std::string_view symbol) noexcept {
    return symbol.substr(0, symbol.find('_'));
}

/// Whether it is the name of an entry point of which no version that is known touches anything: one more
/// version will not either.
bool is_harmless(std::string_view name) noexcept {
    const auto is_meant = [&](const char* symbol) { return documented(symbol) == documented(name); };
    return std::none_of(k_symbols.begin(), k_symbols.end(), is_meant) &&
           std::any_of(std::begin(k_harmless), std::end(k_harmless), is_meant);
}

bool is_entry_point(std::string_view name) noexcept {
    return name.size() > 2 && name.starts_with("cu") && name[2] >= 'A' && name[2] <= 'Z';
}

bool is_name(const char* name, const char* wanted) noexcept {
    return std::strcmp(name, wanted) == 0;
}

} // namespace

void* loaded_driver() noexcept {
    static std::atomic<void*> s_driver{nullptr};
    if (auto* driver = s_driver.load(std::memory_order_relaxed)) return driver;
    auto* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver) s_driver.store(driver, std::memory_order_relaxed); // and never closed
    return driver;
}

void* find_real(Entry entry) noexcept {
    static_cast<void>(table());
    void* const address = g_real[static_cast<std::size_t>(entry)].load(std::memory_order_relaxed);
    return address ? address : reinterpret_cast<void*>(&answer_for_missing);
}

void* stand_in_for(void* address, const char* name) noexcept {
    const auto* known = intercepts() ? table() : nullptr;
    if (!known) return address;
    const auto* const end = known->rows.data() + known->count;
    const auto* const row = std::lower_bound(known->rows.data(), end, Table::Row{address, 0, nullptr});
    if (row != end && row->real == address) return row->stand_in;
    const bool is_unknown = is_entry_point(name) && !is_harmless(name) && known->count != 0 &&
                            are_together(known->rows.front().real, address);
    return is_unknown ? agent::intercepted::stand_in_for_unknown(address, name) : address;
}

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
    if (status == CUDA_SUCCESS && function && *function) *function = stand_in_for(*function, symbol);
    return status;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
    const auto status = real<Entry::cuGetProcAddress>()(symbol, function, version, flags);
    if (status == CUDA_SUCCESS && function && *function) *function = stand_in_for(*function, symbol);
    return status;
}

} // namespace own

// The exported symbols, for programs that are linked to libcuda: each jumps to what stands in for it.
#define GPU_SLEEP_SLOT(name, hook)                                                                           \
    extern "C" __attribute__((visibility("hidden"), used)) void* const gpu_sleep_hook_##name =               \
        reinterpret_cast<void*>(hook);
#define GPU_SLEEP_OWN(name) GPU_SLEEP_SLOT(name, (&own::name))
#define GPU_SLEEP_SUBMITS(name) GPU_SLEEP_SLOT(name, (&Forward<Entry::name, gate::Touch::submits>::call))
#define GPU_SLEEP_TAKES(name) GPU_SLEEP_SLOT(name, (&Forward<Entry::name, gate::Touch::takes>::call))
GPU_SLEEP_DECLARED_OWN_HOOKS(GPU_SLEEP_OWN)
GPU_SLEEP_DECLARED_SUBMITTING(GPU_SLEEP_SUBMITS)
GPU_SLEEP_DECLARED_TAKING(GPU_SLEEP_TAKES)

#if defined(__x86_64__)
#define GPU_SLEEP_JUMP(name) "jmp *gpu_sleep_hook_" #name "(%rip)\n"
#define GPU_SLEEP_FUNCTION_TYPE "@function"
#else
#define GPU_SLEEP_JUMP(name)                                                                                 \
    "adrp x16, gpu_sleep_hook_" #name "\n ldr x16, [x16, :lo12:gpu_sleep_hook_" #name "]\n br x16\n"
#define GPU_SLEEP_FUNCTION_TYPE "%function"
#endif
#define GPU_SLEEP_EXPORT(name)                                                                               \
    asm(".text\n.globl " #name "\n.type " #name ", " GPU_SLEEP_FUNCTION_TYPE "\n" #name                      \
        ":\n.cfi_startproc\n" GPU_SLEEP_JUMP(name) ".cfi_endproc\n.size " #name ", .-" #name "\n");
GPU_SLEEP_DECLARED(GPU_SLEEP_EXPORT)

} // namespace gpu_sleep::hooks
