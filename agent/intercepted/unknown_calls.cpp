// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of names.

#include "intercepted/unknown_calls.hpp"

#include <array>
#include <atomic>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Room for all that the hooks tell apart, and one for the others; null behind the last.
constinit std::array<std::atomic<const char*>, 257> g_called{};

} // namespace

void note_unknown_call(const char* name) noexcept {
    for (auto& each : g_called) {
        const char* noted = nullptr;
        if (each.compare_exchange_strong(noted, name) || noted == name) return;
    }
}

std::vector<std::string> called_unknown() {
    std::vector<std::string> called;
    for (const char* name : g_called)
        if (name) called.emplace_back(name);
    return called;
}

} // namespace gpu_sleep::agent::intercepted
