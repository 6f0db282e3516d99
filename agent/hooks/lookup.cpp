// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where the driver's own functions lie, and what the program gets when it looks a symbol of the driver up:
// dlsym, cuGetProcAddress, and the exported symbols; and the stand-ins of entry points that this build does
// not know, a fixed number of jumps.

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/symbols.hpp"
#include "common/lock_order.hpp"
#include "driver/library.hpp"
#include "freestanding/no_c_library.hpp"
#include "freestanding/trampolines.hpp"
#include "hooks/driver_table.hpp"
#include "hooks/forward.hpp"

#include <dlfcn.h>

#include <cstring>

// How many can be told apart. CUDA 13.0's runtime asks for 33 that are not in cuda.h, for OpenGL, EGL and
// VDPAU; each release since 12.0 has added at most 40.
#define GPU_SLEEP_UNKNOWN_COUNT 256
#define GPU_SLEEP_TEXT_OF(value) #value
#define GPU_SLEEP_TEXT(value) GPU_SLEEP_TEXT_OF(value)

extern "C" {

[[gnu::used]] constinit void* gpu_sleep_late_slots[GPU_SLEEP_UNKNOWN_COUNT] = {};

/// The stand-ins, one after the other.
__attribute__((visibility("hidden"))) extern const char gpu_sleep_unknown_stand_ins[];

} // extern "C"

namespace gpu_sleep::hooks {

std::array<std::atomic<void*>, k_entries> g_real{};

// Where each exported symbol jumps to, and what look-ups give for it.
#define GPU_SLEEP_HOOK_own(name) Own<Entry::name, &own::name, false>
#define GPU_SLEEP_HOOK_own_passes(name) Own<Entry::name, &own::name, true>
#define GPU_SLEEP_HOOK_own_shared(name) GPU_SLEEP_HOOK_own(name)
#define GPU_SLEEP_HOOK_own_shared_passes(name) GPU_SLEEP_HOOK_own_passes(name)
#define GPU_SLEEP_HOOK_forwarding(name) Forward<Entry::name>
#define GPU_SLEEP_HOOK_asking(name) Ask<Entry::name>
#define GPU_SLEEP_SLOT(name, touch, hook)                                                                    \
    extern "C" __attribute__((visibility("hidden"))) void* const gpu_sleep_hook_##name =                     \
        reinterpret_cast<void*>(&GPU_SLEEP_HOOK_##hook(name)::call);
GPU_SLEEP_DECLARED(GPU_SLEEP_SLOT)

namespace {

/// Stands for each function that the driver lacks: a program may be linked to one weakly, and gets ours.
CUresult answer_for_missing() noexcept {
    return CUDA_ERROR_NOT_FOUND;
}

/// The agent's function for each entry point, in their order; null for those that cuda.h lacks.
constexpr auto k_stand_ins = [] {
    std::array<void* const*, k_entries> made{};
#define GPU_SLEEP_STAND_IN(name, touch, hook)                                                                \
    made[static_cast<std::size_t>(Entry::name)] = &gpu_sleep_hook_##name;
    GPU_SLEEP_DECLARED(GPU_SLEEP_STAND_IN)
#undef GPU_SLEEP_STAND_IN
    return made;
}();

/// Entry points that go to the driver unchanged.
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

Table make_table() noexcept {
    Table made;
    const auto add = [&](void* address, void* stand_in) {
        made.rows[made.count] = {address, made.count, stand_in};
        ++made.count;
    };
    for (std::size_t i = 0; i < k_entries; ++i) {
        void* const address = g_real[i].load(std::memory_order_relaxed);
        if (address && k_stand_ins[i]) add(address, *k_stand_ins[i]); // else an older driver, or cuda.h
    }
    for (const char* symbol : k_harmless)
        if (void* const address = find_symbol(driver::loaded_libcuda(), symbol)) add(address, address);
    std::sort(made.rows.begin(), made.rows.begin() + static_cast<std::ptrdiff_t>(made.count));
    return made;
}

const Table* table() noexcept {
    if (const auto* made = g_table.load(std::memory_order_acquire)) return made;
    if (!find_all_real()) return nullptr;
    const auto found = make_table(); // also each thread for itself
    static Mutex s_mutex GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost); ///< held over a copy alone
    const MutexLock lock(s_mutex);
    if (const auto* made = g_table.load(std::memory_order_acquire)) return made;
    static constinit Table s_table;
    s_table = found;
    g_table.store(&s_table, std::memory_order_release);
    return &s_table;
}

/// Whether both addresses lie in the same library.
bool are_together(const void* one, const void* other) noexcept {
    Dl_info here{};
    Dl_info there{};
    return ::dladdr(one, &here) != 0 && ::dladdr(other, &there) != 0 && here.dli_fbase == there.dli_fbase;
}

/// A symbol as it is documented, without its version or that of the default stream.
constexpr std::string_view documented(std::string_view symbol) noexcept {
    return symbol.substr(0, symbol.find('_'));
}

/// Whether it is the name of an entry point of which no version that is known touches anything: one more
/// version will not either.
bool is_harmless(std::string_view name) noexcept {
    const auto is_meant = [&](const char* symbol) { return documented(symbol) == documented(name); };
    bool is_known = std::any_of(std::begin(k_harmless), std::end(k_harmless), is_meant);
    for (const auto& each : k_entry_points) {
        if (!is_meant(each.symbol)) continue;
        if (!each.only_asks) return false;
        is_known = true;
    }
    return is_known;
}

constexpr std::size_t k_unknown_count = GPU_SLEEP_UNKNOWN_COUNT;
constexpr std::size_t k_stand_in_bytes = 32; ///< as the assembly aligns them

struct Unknown {
    void* address = nullptr;
    char name[64] = {};
};

/// Held over a few words alone, while one is added.
Mutex g_unknown_mutex GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::handles)
    GPU_SLEEP_ACQUIRED_BEFORE(agent::lock_order::innermost);
constinit std::array<Unknown, k_unknown_count> g_known{}; ///< those below the count are not changed later
constinit std::size_t g_used = 0;

/// A function to give the program in place of the unknown one at `address`, which it asked for as `name`. The
/// CUDA runtime asks for everything and calls little of it: so the stand-in passes every call on, whatever
/// its arguments, and only notes the first (intercepted/calls.hpp), which passes the gate as work does. The
/// same for the same address. Thread-safe; takes no memory.
void* stand_in_for_unknown(void* address, const char* name) noexcept {
    const MutexLock lock(g_unknown_mutex);
    std::size_t i = 0;
    while (i < g_used && g_known[i].address != address) ++i;
    if (i == k_unknown_count) {
        registry::books().unseen.note_call("others"); // what is done with the driver's own is not known
        return address;
    }
    if (i == g_used) {
        g_known[i].address = address;
        std::strncpy(g_known[i].name, name, sizeof g_known[i].name - 1);
        ++g_used;
    }
    return const_cast<char*>(gpu_sleep_unknown_stand_ins + i * k_stand_in_bytes);
}

/// Returns the agent's function for the function of libcuda at `address`, for which the program asked as
/// `name`; `address` itself if there is none. `version` is that of cuGetProcAddress; 0 for a symbol.
void* stand_in_for(void* address, const char* name, int version) noexcept {
    const auto* known = intercepts() ? table() : nullptr;
    if (!known) return address;
    const auto* const end = known->rows.data() + known->count;
    const auto* const row = std::lower_bound(known->rows.data(), end, Table::Row{address, 0, nullptr});
    if (row != end && row->real == address) return row->stand_in;
    const bool is_unknown = freestanding::is_entry_point(name) && !is_harmless(name) && known->count != 0 &&
                            are_together(known->rows.front().real, address);
    if (!is_unknown) return address;
    // For this name alone the look-up has a function that no symbol leads to.
    constexpr int k_with_flags_since = 12'000;
    if (version >= k_with_flags_since && std::string_view(name) == "cuGraphInstantiate")
        return *k_stand_ins[static_cast<std::size_t>(Entry::cuGraphInstantiateWithFlags)];
    return stand_in_for_unknown(address, name);
}

} // namespace

bool find_all_real() noexcept {
    static std::atomic<bool> s_done{false};
    if (s_done.load(std::memory_order_acquire)) return true;
    void* const driver = driver::loaded_libcuda();
    if (!driver) return false;
    // A thread in a library's constructor has the loader's lock, and may come here: so each thread looks up
    // for itself, and finds the same.
    for (std::size_t i = 0; i < k_entries; ++i)
        g_real[i].store(find_symbol(driver, k_entry_points[i].symbol), std::memory_order_relaxed);
    s_done.store(true, std::memory_order_release);
    return true;
}

void* find_real(Entry entry) noexcept {
    // The linker leaves libcuda out where the agent comes before it and has all that the program calls.
    if (!find_all_real())
        ignoring_errors([] {
            const auto opened = driver::open_libcuda();
            if (!opened) return log::error("{}", opened.error().message);
            static_cast<void>(find_all_real());
        });
    void* const address = g_real[static_cast<std::size_t>(entry)].load(std::memory_order_relaxed);
    return address ? address : reinterpret_cast<void*>(&answer_for_missing);
}

extern "C" [[gnu::used]] void* gpu_sleep_first_called(std::size_t which) noexcept {
    const auto& called = g_known[which];
    const gate::Passage passage(gate::Touch::submits, called.name);
    if (!passage.admitted()) return reinterpret_cast<void*>(&intercepted::refused);
    registry::books().unseen.note_call(called.name);
    std::atomic_ref(gpu_sleep_late_slots[which]).store(called.address);
    return called.address;
}

extern "C" freestanding::Found gpu_sleep_look_up(void* handle, const char* name) noexcept {
    const auto real = real_dlsym();
    const freestanding::Found ask_the_real_one{nullptr, real};
    if (!real || !freestanding::is_entry_point(name)) return ask_the_real_one;
    const std::string_view symbol = name;
    if (symbol == "cuInit" || symbol == "cuGetProcAddress_v2") check_interception_setting();
    if (!intercepts()) return ask_the_real_one;
    void* const address = real(handle, name);
    if (!address) return ask_the_real_one;
    void* const stand_in = stand_in_for(address, name, 0);
    if (stand_in != address) return {stand_in, nullptr};
    // Our own exported symbols must not make a program believe that there is a driver, or that it is newer
    // than it is. The look-up that fails leaves the message that dlerror() gives.
    void* const library = driver::loaded_libcuda();
    const bool is_ours = are_together(reinterpret_cast<const void*>(&gpu_sleep_look_up), address);
    return is_ours && !find_symbol(library ? library : RTLD_NEXT, name) ? freestanding::Found{}
                                                                        : ask_the_real_one;
}

GPU_SLEEP_DLSYM

/// As in the library of a login: the address sanitizer ends a program in which another library comes first,
/// unless it is told that this is meant.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() {
    return "verify_asan_link_order=0";
}

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

// The exported symbols, for programs that are linked to libcuda.
#define GPU_SLEEP_EXPORT(name, touch, hook) GPU_SLEEP_EXPORTED_JUMP(name, gpu_sleep_hook_##name)
GPU_SLEEP_DECLARED(GPU_SLEEP_EXPORT)

} // namespace gpu_sleep::hooks

asm(GPU_SLEEP_LATE_JUMPS ".p2align 5\n.hidden gpu_sleep_unknown_stand_ins\n" GPU_SLEEP_FUNCTION(
    gpu_sleep_unknown_stand_ins,
    ".rept " GPU_SLEEP_TEXT(GPU_SLEEP_UNKNOWN_COUNT) "\n.p2align 5\n" GPU_SLEEP_LATE_JUMP ".endr\n"));
