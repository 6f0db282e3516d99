// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding the real dlsym.

#include "base/symbols.hpp"

#include <dlfcn.h>

#include <atomic>
#include <initializer_list>

namespace gpu_sleep {

SymbolLookup real_dlsym() noexcept {
    static std::atomic<SymbolLookup> s_found{nullptr};
    if (auto found = s_found.load(std::memory_order_relaxed)) return found;
    // dlsym itself cannot be asked: that would find ours. The versions under which C libraries have it.
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
        if (void* symbol = ::dlvsym(RTLD_NEXT, "dlsym", version)) {
            const auto found = reinterpret_cast<SymbolLookup>(symbol);
            s_found.store(found, std::memory_order_relaxed);
            return found;
        }
    }
    return nullptr;
}

void* find_symbol(void* handle, const char* name) noexcept {
    const auto lookup = real_dlsym();
    return lookup ? lookup(handle, name) : nullptr;
}

} // namespace gpu_sleep
