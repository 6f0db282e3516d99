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

/// The functions of a library that is found at run time: derive from it, and have each member find its own.
class SymbolTable {
public:
    /// `library` is never closed.
    explicit SymbolTable(void* library) noexcept : library_(library) {}

    /// Whether all that are needed are there.
    [[nodiscard]] bool is_complete() const noexcept { return is_complete_; }

protected:
    /// Becomes a pointer of any type.
    struct Symbol {
        void* address;
        template <class Pointee>
        operator Pointee*() const noexcept {
            return reinterpret_cast<Pointee*>(address);
        }
    };

    [[nodiscard]] Symbol needed(const char* name) noexcept {
        const auto symbol = optional(name);
        is_complete_ &= symbol.address != nullptr;
        return symbol;
    }
    /// Null where the library lacks it.
    [[nodiscard]] Symbol optional(const char* name) const noexcept { return {find_symbol(library_, name)}; }

private:
    void* library_;
    bool is_complete_ = true;
};

} // namespace gpu_sleep
