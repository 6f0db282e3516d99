// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking now and then at what would be kept, and preparing a piece at a time.

#include "operations/preparing.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "intercepted/contexts_lock.hpp"
#include "operations/parts.hpp"

#include <chrono>
#include <mutex>
#include <optional>
#include <shared_mutex>

namespace gpu_sleep::agent::operations {
namespace {

constexpr Milliseconds k_between_looks{500};
/// After a shortage.
constexpr Milliseconds k_pause{30'000};
/// Beyond what is left available in any case, so that what is prepared need not be given back soon.
constexpr Bytes k_margin = 512 * k_mib;

void look_again_within(Parts& parts, Milliseconds time) {
    parts.preparation.next_look = Clock::now() + time;
    parts.memory.tidy_within(time);
}

/// Gives back what is prepared beyond what is wanted, and notes how things stand. Returns a device for which
/// more is wanted.
std::optional<int> look(Parts& parts) {
    auto& now = parts.preparation;
    return parts.memory.with_lock([&](LockedMemory& locked) {
        std::optional<int> device;
        Bytes wanted = 0;
        Bytes prepared = 0;
        for (const auto& [ordinal, bytes] : locked.worth_preparing()) {
            locked.limit_prepared(ordinal, bytes);
            const auto ready = locked.prepared(ordinal);
            if (ready < bytes && !device) device = ordinal;
            wanted += bytes;
            prepared += ready;
        }
        if (wanted != now.wanted) {
            now.since = Clock::now();
            now.has_given_way = false;
        } else if (prepared < now.prepared) {
            now.has_given_way = true;
        }
        now.wanted = wanted;
        now.prepared = prepared;
        return device;
    });
}

/// Gives back what is prepared.
void end(Parts& parts) noexcept {
    ignoring_errors([&] {
        parts.memory.with_lock([](LockedMemory& locked) {
            for (const auto& [device, bytes] : locked.worth_preparing()) locked.limit_prepared(device, 0);
        });
        parts.preparation.prepared = 0;
    });
}

} // namespace

bool prepare_some(Parts& parts) {
    auto& preparation = parts.preparation;
    const bool is_urgent = preparation.is_urgent;
    if (is_urgent) preparation.has_slept = false;
    if (preparation.has_slept) preparation.settled_after = Milliseconds(0);
    if (preparation.has_slept && preparation.prepared > 0) end(parts);
    const auto settled_after = preparation.settled_after.load();
    if (settled_after == Milliseconds(0) && !is_urgent) return false;
    if (!parts.memory.may_call_driver()) return false;
    const auto early_by = preparation.next_look - Clock::now();
    if (early_by > early_by.zero() && !is_urgent) {
        parts.memory.tidy_within(
            std::chrono::ceil<Milliseconds>(early_by)); // somebody else asked for this one
        return false;
    }
    const auto prepared = guarded([&]() -> Result<bool> {
        const auto device = look(parts);
        if (is_urgent) preparation.has_given_way = false;
        const bool is_settled = is_urgent || Clock::now() - preparation.since >= settled_after;
        if (!device) preparation.is_urgent = false;
        if (!device || !is_settled || preparation.has_given_way) return false;
        // A piece is pinned in a context, which must not end just then.
        const std::shared_lock contexts(intercepted::contexts_mutex(), std::try_to_lock);
        if (!contexts) return false;
        const auto piece = parts.memory.prepare_piece(*device, k_margin);
        if (piece) {
            preparation.prepared += contents::Contents::k_prepared_piece;
            return true;
        }
        log::debug("no host memory is prepared for now: {}", piece.error().message);
        preparation.is_urgent = false;
        look_again_within(parts, k_pause);
        return false;
    });
    const bool has_more = prepared && *prepared;
    const bool follows = settled_after != Milliseconds(0) || preparation.is_urgent;
    if (!has_more && follows && Clock::now() >= preparation.next_look)
        look_again_within(parts, k_between_looks);
    return has_more;
}

} // namespace gpu_sleep::agent::operations
