// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether the environment wants interception: asked before this library's constructors have run.

#include "common/interception.hpp"

#include "base/symbols.hpp"
#include "common/settings.hpp"
#include "model/environment.hpp"

#include <dlfcn.h>

#include <atomic>

namespace gpu_sleep::agent {
namespace {

/// Made at the first question, which may come before this library's own constructors have run.
enum class Decision : int { unknown, off, on, misspelt };
constinit std::atomic<Decision> g_decision{Decision::unknown};

/// Whether the library that gpu-enable preloads has brought the agent.
bool is_brought_for_all() noexcept {
    const auto* const brings = static_cast<const char*>(find_symbol(RTLD_DEFAULT, "gpu_sleep_login_library"));
    return brings && *brings == 1;
}

} // namespace

bool intercepts() noexcept {
    auto decision = g_decision.load(std::memory_order_relaxed);
    if (decision == Decision::unknown) {
        const auto text = setting(model::environment::k_capture);
        const auto wanted = text.empty() ? is_brought_for_all() : parse_switch(text);
        decision = !wanted ? Decision::misspelt : *wanted ? Decision::on : Decision::off;
        if (model::environment::disables(setting(model::environment::k_disable))) decision = Decision::off;
        g_decision.store(decision, std::memory_order_relaxed);
    }
    return decision == Decision::on;
}

void check_interception_setting() noexcept {
    auto decision = Decision::misspelt;
    if (intercepts() || !g_decision.compare_exchange_strong(decision, Decision::off)) return;
    refuse_setting(model::environment::k_capture, "1 or 0");
}

void stop_intercepting() noexcept {
    g_decision.store(Decision::off, std::memory_order_relaxed);
}

} // namespace gpu_sleep::agent
