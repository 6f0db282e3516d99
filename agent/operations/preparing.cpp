// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking now and then at what would be kept, and preparing a piece at a time.

#include "operations/preparing.hpp"

#include "base/log.hpp"
#include "registry/registry.hpp"

namespace gpu_sleep::agent::operations {
namespace {

constexpr Milliseconds k_between_looks{500};
/// After a shortage.
constexpr Milliseconds k_pause{30'000};
/// Beyond what is left available in any case, so that what is prepared need not be given back soon.
constexpr Bytes k_margin = 512 * k_mib;

} // namespace

std::optional<int> Preparation::look(ProgramMemory& memory) {
    return memory.with_lock([&](LockedMemory& locked) {
        std::optional<int> device;
        Bytes wanted = 0;
        Bytes prepared = 0;
        for (const auto& [ordinal, bytes] : locked.worth_preparing()) {
            locked.contents().limit_prepared(ordinal, bytes);
            const auto ready = locked.contents().prepared(ordinal);
            if (ready < bytes && !device) device = ordinal;
            wanted += bytes;
            prepared += ready;
        }
        if (wanted != wanted_) {
            since_ = Clock::now();
            has_given_way_ = false;
        } else if (prepared < prepared_) {
            has_given_way_ = true;
        }
        wanted_ = wanted;
        prepared_ = prepared;
        return device;
    });
}

void Preparation::end(ProgramMemory& memory) noexcept {
    ignoring_errors([&] {
        memory.with_lock([](LockedMemory& locked) {
            for (const auto& [device, bytes] : locked.worth_preparing())
                locked.contents().limit_prepared(device, 0);
        });
        prepared_ = 0;
    });
}

bool Preparation::prepare_some(ProgramMemory& memory) {
    const bool urgent = is_urgent;
    if (urgent) has_slept = false;
    if (has_slept) settled_after = Milliseconds(0);
    if (has_slept && prepared_ > 0) end(memory);
    const auto settled = settled_after.load();
    if (settled == Milliseconds(0) && !urgent) return false;
    if (!memory.may_call_driver()) return false;
    if (!urgent && is_early(memory, next_look_)) return false;
    const auto prepared = guarded([&]() -> Result<bool> {
        const auto device = look(memory);
        if (urgent) has_given_way_ = false;
        const bool is_settled = urgent || Clock::now() - since_ >= settled;
        if (!device) is_urgent = false;
        if (!device || !is_settled || has_given_way_) return false;
        // A piece is pinned in a context, which must not end just then.
        const std::shared_lock contexts(registry::books().contexts.alive, std::try_to_lock);
        if (!contexts) return false;
        const auto piece = memory.prepare_piece(*device, k_margin);
        if (piece) {
            prepared_ += contents::Contents::k_prepared_piece;
            return true;
        }
        log::debug("host memory cannot be prepared for now: {}", piece.error().message);
        is_urgent = false;
        look_again_within(memory, k_pause);
        return false;
    });
    const bool has_more = prepared && *prepared;
    const bool follows = settled != Milliseconds(0) || is_urgent;
    if (!has_more && follows && Clock::now() >= next_look_) look_again_within(memory, k_between_looks);
    return has_more;
}

} // namespace gpu_sleep::agent::operations
