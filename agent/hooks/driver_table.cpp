// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding the driver's real functions.

#include "hooks/driver_table.hpp"

#include "base/symbols.hpp"
#include "driver/library.hpp"

namespace gpu_sleep::hooks {

std::array<std::atomic<void*>, k_entries> g_real{};

namespace {

/// Stands for each function that the driver lacks: a program may be linked to one weakly, and gets ours.
CUresult answer_for_missing() noexcept {
    return CUDA_ERROR_NOT_FOUND;
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
        g_real[i].store(find_symbol(driver, k_symbols[i]), std::memory_order_relaxed);
    s_done.store(true, std::memory_order_release);
    return true;
}

void* find_real(Entry entry) noexcept {
    static_cast<void>(find_all_real());
    void* const address = g_real[static_cast<std::size_t>(entry)].load(std::memory_order_relaxed);
    return address ? address : reinterpret_cast<void*>(&answer_for_missing);
}

} // namespace gpu_sleep::hooks
