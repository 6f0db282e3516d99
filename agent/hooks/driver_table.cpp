// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of the driver's real functions and of what stands in for each.

#include "hooks/driver_table.hpp"

#include "base/symbols.hpp"
#include "base/thread_safety.hpp"
#include "hooks/forward.hpp"
#include "intercepted/unknown_calls.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>

namespace gpu_sleep::hooks {

std::array<std::atomic<void*>, k_entries> g_real{};

// Where each exported symbol jumps to, and what look-ups give for it.
#define GPU_SLEEP_HOOK_own(name) Own<Entry::name, own::name, false>
#define GPU_SLEEP_HOOK_passing(name) Own<Entry::name, own::name, true>
#define GPU_SLEEP_HOOK_forwarding(name) Forward<Entry::name>
#define GPU_SLEEP_HOOK_asking(name) Ask<Entry::name>
#define GPU_SLEEP_SLOT(name, touch, hook)                                                                    \
    extern "C" __attribute__((visibility("hidden"))) void* const gpu_sleep_hook_##name =                     \
        reinterpret_cast<void*>(&GPU_SLEEP_HOOK_##hook(name)::call);
GPU_SLEEP_DECLARED(GPU_SLEEP_SLOT)

namespace {

/// What stands in for each entry point, in their order; null for those that cuda.h lacks.
constexpr auto k_stand_ins = [] {
    std::array<void* const*, k_entries> made{};
#define GPU_SLEEP_STAND_IN(name, touch, hook)                                                                \
    made[static_cast<std::size_t>(Entry::name)] = &gpu_sleep_hook_##name;
    GPU_SLEEP_DECLARED(GPU_SLEEP_STAND_IN)
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
        add(address, *k_stand_ins[i]);
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

/// A symbol as it is documented, without its version or that of the default stream.
constexpr std::string_view documented(std::string_view symbol) noexcept {
    return symbol.substr(0, symbol.find('_'));
}

/// Whether each of k_symbols is one that only asks, without a hook of its own.
constexpr bool k_only_asks[] = {
#define GPU_SLEEP_ONLY_ASKS(name, touch, hook) #hook == std::string_view("asking"),
    GPU_SLEEP_INTERCEPTED(GPU_SLEEP_ONLY_ASKS)
#undef GPU_SLEEP_ONLY_ASKS
};

/// Whether it is the name of an entry point of which no version that is known touches anything: one more
/// version will not either.
bool is_harmless(std::string_view name) noexcept {
    const auto is_meant = [&](const char* symbol) { return documented(symbol) == documented(name); };
    bool is_known = std::any_of(std::begin(k_harmless), std::end(k_harmless), is_meant);
    for (std::size_t i = 0; i < k_entries; ++i) {
        if (!is_meant(k_symbols[i])) continue;
        if (!k_only_asks[i]) return false;
        is_known = true;
    }
    return is_known;
}

bool is_entry_point(std::string_view name) noexcept {
    return name.size() > 2 && name.starts_with("cu") && name[2] >= 'A' && name[2] <= 'Z';
}

} // namespace

void* loaded_driver() noexcept {
    static std::atomic<void*> s_driver{nullptr};
    if (auto* driver = s_driver.load(std::memory_order_relaxed)) return driver;
    auto* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver) s_driver.store(driver, std::memory_order_relaxed); // and never closed
    return driver;
}

bool is_ours(const void* address) noexcept {
    return are_together(reinterpret_cast<const void*>(&loaded_driver), address);
}

void* find_real(Entry entry) noexcept {
    static_cast<void>(table());
    void* const address = g_real[static_cast<std::size_t>(entry)].load(std::memory_order_relaxed);
    return address ? address : reinterpret_cast<void*>(&answer_for_missing);
}

void* stand_in_for(void* address, const char* name, int version) noexcept {
    const auto* known = intercepts() ? table() : nullptr;
    if (!known) return address;
    const auto* const end = known->rows.data() + known->count;
    const auto* const row = std::lower_bound(known->rows.data(), end, Table::Row{address, 0, nullptr});
    if (row != end && row->real == address) return row->stand_in;
    const bool is_unknown = is_entry_point(name) && !is_harmless(name) && known->count != 0 &&
                            are_together(known->rows.front().real, address);
    if (!is_unknown) return address;
    // For this name alone the look-up has a function that no symbol leads to.
    constexpr int k_with_flags_since = 12'000;
    if (version >= k_with_flags_since && std::string_view(name) == "cuGraphInstantiate")
        return *k_stand_ins[static_cast<std::size_t>(Entry::cuGraphInstantiateWithFlags)];
    return agent::intercepted::stand_in_for_unknown(address, name);
}

} // namespace gpu_sleep::hooks
