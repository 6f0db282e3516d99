// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking symbols up past whatever stands in for dlsym, our own stand-in among it.

#pragma once

namespace gpu_sleep {

using SymbolLookup = void* (*)(void* handle, const char* name);

/// The C library's dlsym, or that of whatever stands behind us. Thread-safe; takes no lock once it was found.
[[nodiscard]] SymbolLookup real_dlsym() noexcept;

/// As dlsym(3), without being caught. With RTLD_NEXT it starts behind the caller's library, which is ours.
[[nodiscard]] void* find_symbol(void* handle, const char* name) noexcept;

} // namespace gpu_sleep
