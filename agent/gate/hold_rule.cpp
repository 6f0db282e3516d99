// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which calls may touch what sleeps.

#include "gate/hold_rule.hpp"

#include "base/guard.hpp"

#include <algorithm>
#include <cstddef>

namespace gpu_sleep::gate {

const Named::Span* HoldRule::first_sleeping(const Named& named) const {
    for (const auto& span : named.spans) {
        const auto after =
            std::upper_bound(sleeping.begin(), sleeping.end(), span.begin,
                             [](std::uint64_t at, const Named::Span& s) { return at < s.end; });
        if (after != sleeping.end() && after->begin < span.end) return &span;
    }
    return nullptr;
}

bool HoldRule::may_touch_sleeping(Touch touch, const Named& named) const {
    if (!something_sleeps()) return false;
    const bool may_name = lists_all ? names_sleeping(named) : !named.spans.empty();
    if (touch == Touch::takes) return may_name; // most name none
    return !named.known || !lists_all || may_name;
}

void HoldRule::forget(Named::Span gone) noexcept {
    for (std::size_t i = 0; i < sleeping.size(); ++i) {
        auto& span = sleeping[i];
        if (gone.begin >= span.end || gone.end <= span.begin) continue;
        if (gone.begin <= span.begin && gone.end >= span.end) {
            sleeping.erase(sleeping.begin() + static_cast<std::ptrdiff_t>(i--));
        } else if (gone.begin <= span.begin) {
            span.begin = gone.end;
        } else if (gone.end >= span.end) {
            span.end = gone.begin;
        } else {
            // Without memory the hole stays listed: that holds too much, never too little.
            const Named::Span rest{gone.end, span.end};
            const auto after = sleeping.begin() + static_cast<std::ptrdiff_t>(i) + 1;
            const auto parted = guarded([&] { sleeping.insert(after, rest); });
            if (parted) sleeping[i].end = gone.begin;
        }
    }
}

} // namespace gpu_sleep::gate
