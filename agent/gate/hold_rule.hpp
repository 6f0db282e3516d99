// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a closed gate holds: what sleeps, and which calls may touch it.

#pragma once

#include "base/units.hpp"
#include "model/model.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace gpu_sleep::gate {

/// What a call of the program does, as far as the gate cares.
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

/// What sleeps, and what becomes of a call that touches it. Not checked: everything is held.
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
    [[nodiscard]] const Named::Span* first_sleeping(const Named& named) const;
    [[nodiscard]] bool names_sleeping(const Named& named) const { return first_sleeping(named); }
    [[nodiscard]] bool may_touch_sleeping(Touch touch, const Named& named) const;
    /// What slept at these addresses is gone.
    void forget(Named::Span gone) noexcept;
};

} // namespace gpu_sleep::gate
