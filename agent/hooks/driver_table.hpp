// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The intercepted entry points as types and numbers: their signatures, and their real addresses in libcuda.

#pragma once

// Makes cuda.h declare every exported symbol under its own name, those of older versions among them; so a
// file that reads driver/api.hpp, too, sees it with those names. The target defines it, since it has to come
// before the first cuda.h.
#if !defined(__CUDA_API_VERSION_INTERNAL)
#error "for the hooks alone"
#endif
#include "common/interception.hpp"
#include "declared_entry_points.hpp" // made by the build of entry_points.txt
#include "gate/gate.hpp"
#include "intercepted/calls.hpp"

#include <cuda.h>

namespace gpu_sleep::hooks {

/// All of the list, in its order, so that what is said of one needs no question whether cuda.h has it.
enum class Entry : std::uint16_t {
#define GPU_SLEEP_ENUMERATOR(name, touch, hook) name,
    GPU_SLEEP_INTERCEPTED(GPU_SLEEP_ENUMERATOR)
#undef GPU_SLEEP_ENUMERATOR
        count
};
inline constexpr auto k_entries = static_cast<std::size_t>(Entry::count);

struct EntryPoint {
    const char* symbol;
    gate::Touch touch; ///< its class
    bool only_asks;    ///< without a hook of its own
};
inline constexpr EntryPoint k_entry_points[] = {
#define GPU_SLEEP_ENTRY_POINT(name, touch, hook)                                                             \
    {#name, gate::Touch::touch, #hook == std::string_view("asking")},
    GPU_SLEEP_INTERCEPTED(GPU_SLEEP_ENTRY_POINT)
#undef GPU_SLEEP_ENTRY_POINT
};

template <Entry entry>
struct Signature;
#define GPU_SLEEP_SIGNATURE(name, touch, hook)                                                               \
    template <>                                                                                              \
    struct Signature<Entry::name> {                                                                          \
        using Type = decltype(::name);                                                                       \
    };
GPU_SLEEP_DECLARED(GPU_SLEEP_SIGNATURE)
#undef GPU_SLEEP_SIGNATURE

/// The addresses in libcuda; null until they are needed, or where the driver has no such entry point.
extern std::array<std::atomic<void*>, k_entries> g_real;

/// Finds all of them, unless that is done. Whether libcuda is loaded: else there are none. Thread-safe; takes
/// the loader's lock, and no other.
bool find_all_real() noexcept;
/// The entry point in libcuda, which is loaded for it; where there is none, what answers that it was not
/// found.
[[nodiscard]] void* find_real(Entry entry) noexcept;

/// The driver's own function, or what answers in its place where the driver lacks it; never null.
template <Entry entry>
[[nodiscard]] typename Signature<entry>::Type* real() noexcept {
    auto* address = g_real[static_cast<std::size_t>(entry)].load(std::memory_order_relaxed);
    if (!address) [[unlikely]]
        address = find_real(entry);
    return reinterpret_cast<typename Signature<entry>::Type*>(address);
}

template <Entry entry>
inline constexpr const char* k_name = k_entry_points[static_cast<std::size_t>(entry)].symbol;

/// Whether it is the one for programs whose default stream is each thread's own.
template <Entry entry>
inline constexpr bool k_per_thread =
    std::string_view(k_name<entry>).ends_with("_ptsz") || std::string_view(k_name<entry>).ends_with("_ptds");

template <Entry entry>
inline constexpr gate::Touch k_touch = k_entry_points[static_cast<std::size_t>(entry)].touch;

namespace intercepted = agent::intercepted;
namespace registry = agent::registry;
using agent::check_interception_setting;
using agent::intercepts;
using intercepted::refused;

/// The status of the driver's call, once `note` has noted what that did.
template <class Note>
CUresult noted(CUresult status, const Note& note) noexcept {
    if (status == CUDA_SUCCESS && intercepts()) note();
    return status;
}

// The hooks of their own, by the entry points' names.
namespace own {
#define GPU_SLEEP_DECLARE_own(name) decltype(::name) name;
#define GPU_SLEEP_DECLARE_own_passes(name) decltype(::name) name;
#define GPU_SLEEP_DECLARE_own_shared(name) extern decltype(&::name) const name;
#define GPU_SLEEP_DECLARE_own_shared_passes(name) extern decltype(&::name) const name;
#define GPU_SLEEP_DECLARE_forwarding(name)
#define GPU_SLEEP_DECLARE_asking(name)
#define GPU_SLEEP_DECLARE(name, touch, hook) GPU_SLEEP_DECLARE_##hook(name)
GPU_SLEEP_DECLARED(GPU_SLEEP_DECLARE)
#undef GPU_SLEEP_DECLARE
/// The hooks of a group of the list are of a function template, which is given the entry point first.
#define GPU_SLEEP_SHARE(group, ...) GPU_SLEEP_SHARED_##group(GPU_SLEEP_HOOK_OF_GROUP, __VA_ARGS__)
#define GPU_SLEEP_HOOK_OF_GROUP(name, hook, ...)                                                             \
    decltype(&::name) const name = &hook<Entry::name __VA_OPT__(, ) __VA_ARGS__>;
} // namespace own

} // namespace gpu_sleep::hooks
