// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which stand-in is whose, and what its first call does.

#include "hooks/unknown_calls.hpp"

#include "base/thread_safety.hpp"
#include "freestanding/trampolines.hpp"
#include "gate/gate.hpp"
#include "intercepted/answer.hpp"
#include "intercepted/unknown_calls.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>

// How many can be told apart. CUDA 13.0's runtime asks for 33 that are not in cuda.h, for OpenGL, EGL and
// VDPAU; each release since 12.0 has added at most 40.
#define GPU_SLEEP_UNKNOWN_COUNT 256
#define GPU_SLEEP_TEXT_OF(value) #value
#define GPU_SLEEP_TEXT(value) GPU_SLEEP_TEXT_OF(value)

extern "C" {

[[gnu::used]] constinit void* gpu_sleep_late_slots[GPU_SLEEP_UNKNOWN_COUNT] = {};

/// The stand-ins, one after the other.
__attribute__((visibility("hidden"))) extern const char gpu_sleep_unknown_stand_ins[];

} // extern "C"

namespace gpu_sleep::hooks {
namespace {

constexpr std::size_t k_count = GPU_SLEEP_UNKNOWN_COUNT;
constexpr std::size_t k_stand_in_bytes = 32; ///< as the assembly aligns them

struct Unknown {
    void* address = nullptr;
    char name[64] = {};
};

Mutex g_mutex;                                    ///< held over a few words alone, while one is added
constinit std::array<Unknown, k_count> g_known{}; ///< those below the count are not changed later
constinit std::size_t g_used = 0;

} // namespace

void* stand_in_for_unknown(void* address, const char* name) noexcept {
    const MutexLock lock(g_mutex);
    std::size_t i = 0;
    while (i < g_used && g_known[i].address != address) ++i;
    if (i == k_count) {
        agent::intercepted::note_unknown_call("others"); // what is done with the driver's own is not known
        return address;
    }
    if (i == g_used) {
        g_known[i].address = address;
        std::strncpy(g_known[i].name, name, sizeof g_known[i].name - 1);
        ++g_used;
    }
    return const_cast<char*>(gpu_sleep_unknown_stand_ins + i * k_stand_in_bytes);
}

extern "C" [[gnu::used]] void* gpu_sleep_first_called(std::size_t which) noexcept {
    const auto& called = g_known[which];
    const gate::Passage passage(gate::Touch::submits, called.name);
    if (!passage.admitted()) return reinterpret_cast<void*>(&agent::intercepted::refused);
    agent::intercepted::note_unknown_call(called.name);
    std::atomic_ref(gpu_sleep_late_slots[which]).store(called.address);
    return called.address;
}

} // namespace gpu_sleep::hooks

asm(GPU_SLEEP_LATE_JUMPS ".p2align 5\n.hidden gpu_sleep_unknown_stand_ins\n" GPU_SLEEP_FUNCTION(
    gpu_sleep_unknown_stand_ins,
    ".rept " GPU_SLEEP_TEXT(GPU_SLEEP_UNKNOWN_COUNT) "\n.p2align 5\n" GPU_SLEEP_LATE_JUMP ".endr\n"));
