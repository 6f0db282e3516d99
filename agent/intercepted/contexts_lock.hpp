// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Holding contexts_mutex() alone.

#pragma once

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {

/// Holds contexts_mutex() alone, with precedence over those who call let_contexts_end().
class ContextsAlone {
public:
    ContextsAlone();
    ContextsAlone(const ContextsAlone&) = delete;
    ContextsAlone& operator=(const ContextsAlone&) = delete;
    ~ContextsAlone();
};

} // namespace gpu_sleep::agent::intercepted
