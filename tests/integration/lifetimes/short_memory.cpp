// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A malloc of the program's own, which knows the agent by its addresses: the operator new inside it calls
// malloc.

#include "short_memory.hpp"

#include <link.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpu_sleep::test {
namespace {

struct Short {
    std::atomic<bool> is_on;
    bool is_lasting;
    std::atomic<bool> has_failed;
    std::atomic<long> left; ///< that succeed

    void begin(long succeed, bool lasting) noexcept {
        is_lasting = lasting;
        has_failed = false;
        left = succeed;
        is_on = true;
    }
    bool fails() noexcept {
        const auto now = left--;
        if (now > 0 || (now < 0 && !is_lasting)) return false;
        has_failed = true;
        return true;
    }
};
constinit thread_local Short t_short{};
constinit Short g_short{};                 ///< of the threads that have the name
constinit const char* g_threads = nullptr; ///< which is this

struct Library {
    std::uintptr_t begin = UINTPTR_MAX, end = 0;
};

Library find_agent() noexcept {
    Library agent;
    const auto visit = [](dl_phdr_info* object, std::size_t, void* data) {
        if (!std::strstr(object->dlpi_name, "libgpu-sleep-agent")) return 0;
        auto& library = *static_cast<Library*>(data);
        for (int i = 0; i < object->dlpi_phnum; ++i) {
            const auto& header = object->dlpi_phdr[i];
            if (header.p_type != PT_LOAD) continue;
            const auto from = object->dlpi_addr + header.p_vaddr;
            library.begin = std::min<std::uintptr_t>(library.begin, from);
            library.end = std::max<std::uintptr_t>(library.end, from + header.p_memsz);
        }
        return 1;
    };
    ::dl_iterate_phdr(visit, &agent);
    return agent;
}

const Library& agent() noexcept {
    static const auto s_agent = find_agent();
    return s_agent;
}

bool has_name(const char* threads) noexcept {
    char name[16] = {};
    return ::prctl(PR_GET_NAME, name) == 0 && std::strncmp(name, threads, std::strlen(threads)) == 0;
}

bool fails(const void* caller) noexcept {
    if (!t_short.is_on && !g_short.is_on) return false;
    const auto address = reinterpret_cast<std::uintptr_t>(caller);
    if (address < agent().begin || address >= agent().end) return false;
    if (t_short.is_on) return t_short.fails();
    return has_name(g_threads) && g_short.fails();
}

} // namespace

ShortMemory::ShortMemory(long succeed, How how, const char* threads) noexcept : is_own_(!threads) {
    static_cast<void>(agent());
    t_short.has_failed = false;
    g_short.has_failed = false;
    if (!is_own_) g_threads = threads;
    (is_own_ ? t_short : g_short).begin(succeed, how == How::lasting);
}

ShortMemory::~ShortMemory() {
    (is_own_ ? t_short : g_short).is_on = false;
}

bool ShortMemory::has_failed() noexcept {
    return t_short.has_failed || g_short.has_failed;
}

} // namespace gpu_sleep::test

extern "C" [[gnu::visibility("default")]] void* malloc(std::size_t bytes) {
    if (gpu_sleep::test::fails(__builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    constexpr std::size_t k_alignment = alignof(std::max_align_t); // which aligned_alloc asks of the size too
    return ::aligned_alloc(k_alignment, bytes > SIZE_MAX - k_alignment
                                            ? bytes
                                            : (bytes + k_alignment - 1) / k_alignment * k_alignment);
}
