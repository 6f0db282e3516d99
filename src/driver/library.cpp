// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The loader's calls.

#include "driver/library.hpp"

#include <dlfcn.h>

#include <atomic>

namespace gpu_sleep::driver {

Result<void*> open_library(const char* file, const char* what) {
    if (void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const reason = ::dlerror();
    return make_error(ErrorCode::no_driver, "cannot open the {}: {}", what, reason ? reason : file);
}

void* loaded_libcuda() noexcept {
    static std::atomic<void*> s_library{nullptr};
    if (auto* const known = s_library.load(std::memory_order_relaxed)) return known;
    auto* const found = ::dlopen(k_libcuda, RTLD_NOW | RTLD_NOLOAD);
    if (found) s_library.store(found, std::memory_order_relaxed); // and never closed
    return found;
}

} // namespace gpu_sleep::driver
