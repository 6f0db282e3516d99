// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Opening the driver's libraries at run time. Apart, because hooks use it before a sanitizer is ready.

#pragma once

#include "base/error.hpp"
#include "base/symbols.hpp"

namespace gpu_sleep::driver {

inline constexpr const char* k_libcuda = "libcuda.so.1";

/// Opens `file`, which is `what` for people, and never closes it. Thread-safe. Errors: no_driver.
[[nodiscard]] Result<void*> open_library(const char* file, const char* what);
[[nodiscard]] inline Result<void*> open_libcuda() {
    return open_library(k_libcuda, "CUDA driver");
}

/// libcuda if it is loaded, else null. Never loads it. Thread-safe.
[[nodiscard]] void* loaded_libcuda() noexcept;

/// Whether the library has the symbol, which is then in `function`; else that is null.
template <class Function>
bool find(void* library, const char* symbol, Function*& function) noexcept {
    function = reinterpret_cast<Function*>(find_symbol(library, symbol));
    return function != nullptr;
}

} // namespace gpu_sleep::driver
