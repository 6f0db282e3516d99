// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What was taken out of the books because its context may go.

#pragma once

#include <functional>

namespace gpu_sleep::agent::intercepted {

/// Puts back what was taken out of the books because what it belongs to may go; empty: there was nothing.
using PutBack = std::function<void()>;

/// What was taken out of the books because its context may go.
struct PendingRemoval {
    std::function<void()> gone; ///< called when the context has gone: frees it
    PutBack stays;              ///< called when the context stays
};

/// Moves the entries that are wanted out of a map, which takes no memory.
template <class Map, class Wanted>
[[nodiscard]] Map move_out(Map& from, const Wanted& wanted) {
    Map taken;
    for (auto next = from.begin(); next != from.end();) {
        const auto here = next++;
        if (wanted(*here)) taken.insert(from.extract(here));
    }
    return taken;
}

} // namespace gpu_sleep::agent::intercepted
