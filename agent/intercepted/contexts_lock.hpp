// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The mutex over which contexts live, and holding it alone.

#pragma once

#include <shared_mutex>

namespace gpu_sleep::agent::intercepted {

/// Held alone while a context ends, and shared while we work in contexts that the program may end meanwhile:
/// touching one that is gone corrupts memory. Shared also while we hold a primary context, unless the gate is
/// shut for a transaction: our letting go must not be what ends it. It comes before the mutex of the pools.
[[nodiscard]] std::shared_mutex& contexts_mutex() noexcept;
/// Waits until nobody waits to hold it alone, or for a bounded time. Before it is held shared to wait for the
/// GPU: many who do so one after the other would keep a context from ending for ever.
void let_contexts_end() noexcept;
/// Holds contexts_mutex() alone, with precedence over those who call let_contexts_end().
class ContextsAlone {
public:
    ContextsAlone();
    ContextsAlone(const ContextsAlone&) = delete;
    ContextsAlone& operator=(const ContextsAlone&) = delete;
    ~ContextsAlone();
};

} // namespace gpu_sleep::agent::intercepted
