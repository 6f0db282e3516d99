// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decides which calls a closed gate holds: those that may touch memory that sleeps.

#pragma once

#include "base/guard.hpp"
#include "base/units.hpp"
#include "model/model.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace gpu_sleep::gate {

/// The kind of a call, as far as the gate cares.
enum class Touch : std::uint8_t {
    submits,  ///< gives the GPU work that reads or writes its memory
    shares,   ///< gives memory or its address to others, or ties it down; held as work is
    takes,    ///< may take GPU memory
    captures, ///< begins the capture of a graph
    nests,    ///< the same, by a thread that has one open, which may end only after this one
    ends,     ///< ends a context: held only while a transaction works in it
    asks,     ///< anything else of the driver's: held only while the driver is out of reach
};

/// Addresses that a call names, in bytes: first and one past the last. A call whose addresses are not known
/// names none and says so.
struct Named {
    struct Span {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        friend bool operator==(const Span&, const Span&) = default;
    };
    std::vector<Span> spans;
    bool known = false; ///< false: it may touch anything
};

/// Whether the call begins the capture of a graph.
[[nodiscard]] constexpr bool begins_capture(Touch touch) noexcept {
    return touch == Touch::captures || touch == Touch::nests;
}

/// The sleeping memory, and what happens to a call that touches it. Without `checked`, every call is held.
struct HoldRule {
    model::OnTouch on_touch = model::OnTouch::wait;
    /// How long a touch asks again for a waking that was refused; then it fails.
    std::optional<Milliseconds> limit;
    bool checked = false;
    std::vector<Named::Span> sleeping; ///< sorted, disjoint
    bool lists_all = true;             ///< false: more sleeps than is listed, for want of memory
    bool paused = false;               ///< everything is held, even if nothing sleeps

    [[nodiscard]] bool something_sleeps() const noexcept { return !sleeping.empty() || !lists_all; }
    [[nodiscard]] bool holds_anything() const noexcept { return something_sleeps() || paused; }
    /// The first of the spans that is listed as sleeping, in part or whole, or null. Owned by `named`.
    [[nodiscard]] const Named::Span* first_sleeping(const Named& named) const {
        for (const auto& span : named.spans) {
            const auto after =
                std::upper_bound(sleeping.begin(), sleeping.end(), span.begin,
                                 [](std::uint64_t at, const Named::Span& s) { return at < s.end; });
            if (after != sleeping.end() && after->begin < span.end) return &span;
        }
        return nullptr;
    }
    [[nodiscard]] bool names_sleeping(const Named& named) const { return first_sleeping(named); }
    [[nodiscard]] bool may_touch_sleeping(Touch touch, const Named& named) const {
        if (!something_sleeps()) return false;
        const bool may_name = lists_all ? names_sleeping(named) : !named.spans.empty();
        if (touch == Touch::takes) return may_name; // most name none
        return !named.known || !lists_all || may_name;
    }
    /// Forgets sleeping memory at addresses that were freed.
    void forget(Named::Span gone) noexcept {
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
};

} // namespace gpu_sleep::gate
