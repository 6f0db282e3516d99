// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From the device to a ring, and from there to where it is kept; and back.

#include "contents/relay.hpp"

#include <cstring>

namespace gpu_sleep::contents {
namespace {

/// Claims host memory ahead of the threads that take it.
class Claimer {
public:
    Claimer(Transfer& transfer, const store::ClaimOptions& options, Bytes total)
        : transfer_(transfer), options_(options), total_(total) {}

    /// A claim that covers `bytes` more, and lasts until nobody holds it. Errors: as HostBudget::claim(),
    /// those of Transfer::look().
    [[nodiscard]] Result<std::shared_ptr<store::HostClaim>> take(Bytes bytes) {
        constexpr Bytes k_least = store::HostArena::k_piece_bytes;
        if (left_ < bytes) {
            claim_.reset(); // it may have the turn
            auto made = GPU_SLEEP_TRY(options_.budget->claim(
                std::max(bytes, std::min(k_least, total_)), options_, [this] { return format_bytes(total_); },
                [this] { return transfer_.look(); }, 7 * k_least));
            left_ = made.bytes();
            claim_ = std::make_shared<store::HostClaim>(std::move(made));
        }
        left_ -= bytes;
        total_ -= bytes;
        return claim_;
    }

private:
    Transfer& transfer_;
    const store::ClaimOptions& options_;
    Bytes total_; ///< still to be taken
    Bytes left_ = 0;
    std::shared_ptr<store::HostClaim> claim_;
};

/// Chunks on their way from host memory to the ring and on to the device, in order.
class WayBack {
public:
    explicit WayBack(Transfer& transfer) : transfer_(transfer), staging_(*transfer.staging) {}
    WayBack(const WayBack&) = delete;
    WayBack& operator=(const WayBack&) = delete;
    /// Waits for the threads.
    ~WayBack() {
        for (const auto& chunk : chunks_) wait_for(chunk);
    }

    /// Begins with a chunk. Where half of the ring is being filled, waits for the oldest and queues its copy.
    [[nodiscard]] Result<void> add(driver::DeviceAddress to, std::span<const std::byte> from) {
        // Half of the ring is being filled, and half copied from.
        while (chunks_.size() >= (staging_.slots() + 1) / 2) GPU_SLEEP_TRY(deliver());
        const auto slot = staging_.next();
        GPU_SLEEP_TRY(transfer_.session.wait(staging_.copied(slot)));
        auto& chunk = chunks_.emplace_back(Chunk{to, from, slot}); // it stays where it is
        auto posted = guarded([&] { transfer_.movers->post([this, &chunk](std::size_t) { fill(chunk); }); });
        if (!posted) chunks_.pop_back();
        return posted;
    }
    /// Queues the rest.
    [[nodiscard]] Result<void> finish() {
        while (!chunks_.empty()) GPU_SLEEP_TRY(deliver());
        return {};
    }

private:
    struct Chunk {
        driver::DeviceAddress to = 0;
        std::span<const std::byte> from;
        std::size_t slot = 0;
        bool is_filled = false; ///< guarded by mutex_
    };

    void fill(Chunk& chunk) noexcept {
        std::memcpy(staging_.slot(chunk.slot), chunk.from.data(), chunk.from.size());
        // Notified with the lock held: the chunk may go as soon as this is seen.
        const std::lock_guard lock(mutex_);
        chunk.is_filled = true;
        filled_.notify_one();
    }
    void wait_for(const Chunk& chunk) {
        const model::StepClock::Timed timed(&transfer_.session.steps(), model::Step::copy);
        std::unique_lock lock(mutex_);
        filled_.wait(lock, [&] { return chunk.is_filled; });
    }
    [[nodiscard]] Result<void> deliver() {
        const auto& chunk = chunks_.front();
        wait_for(chunk);
        const auto bytes = chunk.from.size();
        GPU_SLEEP_TRY(transfer_.session.copy_to_device(chunk.to, staging_.slot(chunk.slot), bytes));
        GPU_SLEEP_TRY(transfer_.session.set(staging_.copied(chunk.slot)));
        chunks_.pop_front();
        return transfer_.queued(bytes); // and heeds a withdrawal
    }

    Transfer& transfer_;
    Staging& staging_;
    std::mutex mutex_;
    std::condition_variable filled_;
    std::deque<Chunk> chunks_; ///< this thread alone adds and removes
};

} // namespace

Result<void> relay(Transfer& transfer, std::span<const HostCopy> copies, const store::ClaimOptions& claims,
                   const ReachTurn& reach) {
    std::vector<store::SnapshotExtent> extents(copies.size());
    Bytes total = 0;
    for (std::size_t i = 0; i < copies.size(); ++i) {
        extents[i].address = copies[i].device.address;
        extents[i].bytes = copies[i].device.bytes;
        total += copies[i].device.bytes;
    }
    const auto places = store::places_of(extents);
    const auto slots = Staging::slots_for(places.size(), false, transfer.options);
    const auto move_all = [&](Staging& staging) -> Result<void> {
        Claimer claimer(transfer, claims, total);
        FirstFailure failure;
        DeviceSource source(transfer.session, staging, extents, transfer.progress,
                            [&](std::size_t copy) { return reach(copies[copy].turn); });
        auto* const steps = &transfer.session.steps();
        auto threads = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-move", transfer.options.relay_threads));
        for (const auto& place : places) {
            if (failure.has_failed()) break;
            const auto& copy = copies[place.extent];
            const auto content = GPU_SLEEP_TRY(source.take(place));
            auto claim = GPU_SLEEP_TRY(claimer.take(place.bytes));
            threads->post([&source, &failure, &place, steps, arena = copy.arena, at = copy.at + place.offset,
                           bytes = content, held = std::move(claim)](std::size_t) {
                const model::StepClock::Timed timed(steps, model::Step::populate);
                if (auto written = guarded([&] { return arena->write(at, bytes); }); !written)
                    failure.note(std::move(written).error());
                source.release(place);
            });
        }
        threads.reset(); // once all is there
        return failure.result();
    };
    return transfer.with_staging(slots, move_all);
}

Result<bool> prepare_to_relay_back(Transfer& transfer) {
    auto& options = transfer.options;
    if (options.relay_threads == 0) return false;
    if (transfer.staging && transfer.movers) return true;
    const auto make = [&]() -> Result<bool> {
        if (!transfer.staging) {
            const auto slots = Staging::slots_for(options.staging / codec::k_chunk_bytes, false, options);
            if (slots <= Staging::k_min_slots) return false; // pinning is faster
            transfer.staging =
                GPU_SLEEP_TRY(Staging::create(transfer.pinner, slots, options, transfer.progress));
        }
        transfer.movers = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-move", options.relay_threads));
        return true;
    };
    auto made = guarded(make);
    const bool is_short = !made && (made.error().code == ErrorCode::out_of_host_memory ||
                                    made.error().code == ErrorCode::out_of_threads);
    if (is_short) made = false;
    if (made && !*made) options.relay_threads = 0;
    return made;
}

Result<void> relay_back(Transfer& transfer, std::span<const HostCopy> copies) {
    WayBack way(transfer);
    for (const auto& copy : copies) {
        const std::span<const std::byte> all(copy.arena->at(copy.at), copy.device.bytes);
        for (Bytes at = 0; at < all.size(); at += codec::k_chunk_bytes)
            GPU_SLEEP_TRY(way.add(copy.device.address + at,
                                  all.subspan(at, std::min(codec::k_chunk_bytes, all.size() - at))));
    }
    return way.finish();
}

} // namespace gpu_sleep::contents
