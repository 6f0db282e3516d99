// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Functions of libcuda that are looked up when they are first needed, and are not intercepted.

#pragma once

#include "base/symbols.hpp"
#include "hooks/driver_table.hpp"

#include <atomic>

namespace gpu_sleep::hooks {

/// A function of libcuda by its exact symbol. Thread-safe, and no thread waits for another's look-up: that
/// takes the loader's lock, which a thread in a library's constructor has. A variable that is made at its
/// first use would have it wait.
template <class Function>
class LateSymbol {
public:
    constexpr explicit LateSymbol(const char* symbol) noexcept : symbol_(symbol) {}

    /// Null where the driver lacks it.
    [[nodiscard]] Function* get() noexcept {
        if (!is_found_.load(std::memory_order_acquire)) {
            void* const driver = loaded_driver();
            if (!driver) return nullptr;
            function_.store(reinterpret_cast<Function*>(find_symbol(driver, symbol_)),
                            std::memory_order_relaxed);
            is_found_.store(true, std::memory_order_release);
        }
        return function_.load(std::memory_order_relaxed);
    }

private:
    const char* symbol_;
    std::atomic<Function*> function_{nullptr};
    std::atomic<bool> is_found_{false}; ///< or known to be missing
};

} // namespace gpu_sleep::hooks
