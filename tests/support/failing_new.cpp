// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An operator new of the program's own.

#include "support/failing_new.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace gpu_sleep::test {

constinit thread_local long t_allocations_left = -1;
constinit AllocationsOfAll g_allocations;

namespace {

/// The simulated driver's are left alone: it is not what is tested.
bool is_driver(const void* caller) noexcept {
    Dl_info info{};
    return ::dladdr(caller, &info) != 0 && info.dli_fname && std::strstr(info.dli_fname, "libcuda.so");
}

bool is_next_of_all() noexcept {
    if (!g_allocations.counts) return false;
    const auto left = g_allocations.left.fetch_sub(1);
    return left == 0 || (left < 0 && g_allocations.lasts);
}

void* allocate(std::size_t bytes, const void* caller) noexcept {
    const bool fails =
        is_next_of_all() || (t_allocations_left >= 0 && !is_driver(caller) && t_allocations_left-- == 0);
    return fails ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}

} // namespace
} // namespace gpu_sleep::test

// Not inlined: compilers that see malloc() or free() take it for a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    auto* const memory = gpu_sleep::test::allocate(bytes, __builtin_return_address(0));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return gpu_sleep::test::allocate(bytes, __builtin_return_address(0));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
