// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking up symbols by the real dlsym, not by a replacement of it such as our own.

#pragma once

namespace gpu_sleep {

using SymbolLookup = void* (*)(void* handle, const char* name);

/// The dlsym after ours in the search order: the C library's, unless another library replaces it too.
/// Thread-safe; takes no lock after the first call.
[[nodiscard]] SymbolLookup real_dlsym() noexcept;

/// As dlsym(3), but not intercepted. With RTLD_NEXT the search starts after the caller's library, which is
/// ours.
[[nodiscard]] void* find_symbol(void* handle, const char* name) noexcept;

} // namespace gpu_sleep
