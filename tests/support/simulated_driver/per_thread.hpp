// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The symbols of programs compiled with a per-thread default stream: each is its plain namesake, with another
// meaning of the null stream.

#pragma once

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/entry.hpp"

namespace gpu_sleep::sim {

template <class Function>
struct PerThread;

template <class... Arguments>
struct PerThread<CUresult(Arguments...)> {
    template <CUresult (&function)(Arguments...)>
    static CUresult call(Arguments... arguments) noexcept {
        const PerThreadDefault scope;
        return function(arguments...);
    }
};

} // namespace gpu_sleep::sim

// Two steps, so that cuda.h's renaming macros are applied before the suffix is.
#define SIM_DEFINE_PER_THREAD(name, symbol, suffix, version) SIM_DEFINE_PER_THREAD_NOW(symbol, suffix)
#define SIM_DEFINE_PER_THREAD_NOW(symbol, suffix)                                                            \
    extern "C" decltype(::symbol) symbol##suffix;                                                            \
    SIM_EXPORT(symbol##suffix, gpu_sleep::sim::PerThread<decltype(::symbol)>::call<::symbol>)

/// Its row in a list of symbols.
#define SIM_PER_THREAD_ROW(name, symbol, suffix, version)                                                    \
    Symbol{#name, SIM_PER_THREAD_ADDRESS(symbol, suffix), version},
#define SIM_PER_THREAD_ADDRESS(symbol, suffix) reinterpret_cast<void*>(&::symbol##suffix)
