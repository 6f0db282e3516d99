// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copying between the device and arenas, which are made ready piece by piece meanwhile. New contents are
// relayed where that is faster: to pin memory takes longer than to copy, and is then done after the sleep, or
// by the copies that come first; unless it is much, which is relayed back.

#include "contents/host_cache.hpp"

#include "contents/host_use.hpp"
#include "contents/relay.hpp"
#include "store/arena_preparer.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::contents {
namespace {

using store::HostArena;

/// Adds a copy, or lengthens the last one when the new one continues it on both sides.
void add_copy(std::vector<HostCopy>& copies, const HostCopy& copy) {
    if (!copies.empty()) {
        auto& last = copies.back();
        const bool continues = last.arena == copy.arena && last.device.end() == copy.device.address &&
                               last.at + last.device.bytes == copy.at;
        if (continues) {
            last.device.bytes += copy.device.bytes;
            return;
        }
    }
    copies.push_back(copy);
}

/// The copies of `blocks`, as long as they can be.
std::vector<HostCopy> joined(std::span<const Move> blocks) {
    std::vector<HostCopy> copies;
    for (const auto& block : blocks)
        add_copy(copies, {block.device, block.place.batch->arena(), block.place.at});
    return copies;
}

/// Where that is still to be done.
void pin(Transfer& transfer, HostArena& arena, std::size_t piece) {
    if (arena.is_pinned(piece)) return;
    const model::StepClock::Timed timed(&transfer.session.steps(), model::Step::pin);
    arena.pin(piece);
}

/// Calls `part(piece index, copy)` for each piece that `copy` crosses, until one fails.
template <class Part>
Result<void> for_each_part(const HostCopy& copy, Part&& part) {
    Result<void> done;
    HostArena::for_each_piece({copy.at, copy.device.bytes}, [&](std::size_t index, Span span) {
        if (done)
            done = part(index, HostCopy{{copy.device.address + (span.offset - copy.at), span.bytes},
                                        copy.arena,
                                        span.offset});
    });
    return done;
}

Bytes unpinned_bytes(const HostArena& arena) noexcept {
    Bytes sum = 0;
    for (std::size_t i = 0; i < arena.piece_count(); ++i)
        if (!arena.is_pinned(i)) sum += arena.piece(i).size();
    return sum;
}

/// Queues a copy within a piece, and heeds a withdrawal.
Result<void> copy_out(Transfer& transfer, const HostCopy& part) {
    GPU_SLEEP_TRY(
        transfer.session.copy_to_host(part.arena->at(part.at), part.device.address, part.device.bytes));
    return transfer.queued(part.device.bytes);
}

} // namespace

std::unique_ptr<Batch> HostCache::make_batch(Label label, bool takes_prepared) {
    const auto found = stocks_.find(label.device);
    const bool takes = takes_prepared && found != stocks_.end() && !found->second.empty();
    return std::make_unique<Batch>(std::move(label), budget_, pinner_,
                                   takes ? found->second.front()->arena() : nullptr);
}

Bytes HostCache::prepared(int device) const noexcept {
    const auto found = stocks_.find(device);
    return found == stocks_.end() || found->second.empty() ? 0 : found->second.front()->held();
}

Bytes HostCache::prepared() const noexcept {
    Bytes sum = 0;
    for (const auto& [device, stock] : stocks_) sum += prepared(device);
    return sum;
}

std::vector<int> HostCache::prepared_devices() const {
    std::vector<int> devices;
    for (const auto& [device, stock] : stocks_) devices.push_back(device);
    return devices;
}

void HostCache::add_prepared(int device, HostArena& more) {
    auto& stock = stocks_[device];
    if (stock.empty()) stock.push_back(std::make_unique<Batch>(HostArena::create_stock(pinner_)));
    stock.front()->arena()->absorb(more, more.piece_count());
}

std::unique_ptr<Batch> HostCache::take_prepared(int device, Bytes most) {
    const auto held = prepared(device);
    const auto count = (held - std::min(held, most)) / HostArena::k_piece_bytes;
    if (count == 0) return nullptr;
    auto taken = std::make_unique<Batch>(HostArena::create_stock(pinner_));
    taken->arena()->absorb(*stocks_.at(device).front()->arena(), count);
    return taken;
}

bool HostCache::unpin_prepared() noexcept {
    bool are_all_unpinned = true;
    for (const auto& [device, stock] : stocks_)
        for (const auto& batch : stock) are_all_unpinned &= batch->arena()->unpin_all();
    return are_all_unpinned;
}

void HostCache::take_prepared(Batches& batches) noexcept {
    for (auto& [device, stock] : stocks_) batches.splice(batches.end(), stock);
}

Result<void> HostCache::take(Transfer& transfer, std::span<Batch* const> batches,
                             std::span<const Move> blocks) {
    std::vector<HostArena*> arenas;
    Bytes total = 0;
    for (const auto* batch : batches) {
        arenas.push_back(batch->arena());
        total += arenas.back()->bytes() - arenas.back()->populated_bytes();
    }
    // To memory that is pinned, or is to be so, the device copies itself.
    const bool relays = transfer.options.relay_threads > 0 && total >= transfer.options.relay_from;
    const store::ClaimOptions claims{transfer.options.budget, transfer.progress.host_patience()};
    std::unique_ptr<store::ArenaPreparer> preparer;
    if (!relays) {
        preparer = GPU_SLEEP_TRY(store::ArenaPreparer::start(
            arenas, {claims, transfer.options.fill_threads, &transfer.session.steps()}));
    }
    std::vector<HostCopy> relayed;
    const auto part = [&](std::size_t piece, const HostCopy& copy) -> Result<void> {
        if (relays && !copy.arena->is_pinned(piece)) {
            add_copy(relayed, copy);
            return {};
        }
        if (preparer) GPU_SLEEP_TRY(preparer->wait(*copy.arena, piece, [&] { return transfer.look(); }));
        return copy_out(transfer, copy);
    };
    for (const auto& copy : joined(blocks)) GPU_SLEEP_TRY(for_each_part(copy, part));
    if (!relayed.empty()) GPU_SLEEP_TRY(relay(transfer, relayed, claims));
    if (relays)
        for (auto* const arena : arenas) arena->note_ready();
    return transfer.wait();
}

Result<void> HostCache::replace(Transfer& transfer, std::span<const Move> blocks) {
    const auto part = [&](std::size_t piece, const HostCopy& copy) -> Result<void> {
        pin(transfer, *copy.arena, piece);
        return copy_out(transfer, copy);
    };
    for (const auto& copy : joined(blocks)) GPU_SLEEP_TRY(for_each_part(copy, part));
    return {};
}

Result<void> HostCache::give(Transfer& transfer, std::span<const Move> blocks) {
    std::vector<HostCopy> relayed;
    const HostArena* reached = nullptr; // neighbours lie in one, as a rule
    bool relays = false;
    const auto part = [&](std::size_t piece, const HostCopy& copy) -> Result<void> {
        if (relays && !copy.arena->is_pinned(piece)) {
            relayed.push_back(copy);
            return {};
        }
        pin(transfer, *copy.arena, piece);
        GPU_SLEEP_TRY(
            transfer.session.copy_to_device(copy.device.address, copy.arena->at(copy.at), copy.device.bytes));
        return transfer.queued(copy.device.bytes);
    };
    for (const auto& copy : joined(blocks)) {
        if (std::exchange(reached, copy.arena) != copy.arena) {
            GPU_SLEEP_TRY(copy.arena->unprotect());
            // Nothing is pinned meanwhile, so all calls of a wake see the same.
            relays = unpinned_bytes(*copy.arena) >= std::max<Bytes>(1, transfer.options.relay_from);
            if (relays) {
                relays = GPU_SLEEP_TRY(prepare_to_relay_back(transfer));
            }
        }
        GPU_SLEEP_TRY(for_each_part(copy, part));
    }
    return relayed.empty() ? Result<void>() : relay_back(transfer, relayed);
}

} // namespace gpu_sleep::contents
