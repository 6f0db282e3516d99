// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From the device to a ring, and from there to where it is kept.

#include "contents/relay.hpp"

#include "base/guard.hpp"
#include "store/near_processors.hpp"
#include "store/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace gpu_sleep::contents {
namespace {

/// The first failure of several threads.
class FirstFailure {
public:
    void note(Error error) noexcept {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(error);
        has_failed_ = true;
    }
    [[nodiscard]] bool has_failed() const noexcept { return has_failed_; }
    [[nodiscard]] Result<void> result() const {
        const std::lock_guard lock(mutex_);
        return error_ ? Result<void>(*error_) : Result<void>();
    }

private:
    mutable std::mutex mutex_;
    std::optional<Error> error_;
    std::atomic<bool> has_failed_{false};
};

/// Claims host memory ahead of the threads that take it.
class Claimer {
public:
    Claimer(Transfer& transfer, const store::ClaimOptions& options, Bytes total)
        : transfer_(transfer), claims_(options), total_(total) {}

    /// A claim that covers `bytes` more, and lasts until nobody holds it. Errors: as HostClaims::make(),
    /// those of Transfer::look().
    [[nodiscard]] Result<std::shared_ptr<store::HostClaim>> take(Bytes bytes) {
        constexpr Bytes k_least = store::HostArena::k_piece_bytes;
        if (left_ < bytes) {
            claim_.reset(); // it may have the turn
            std::optional<Error> ended;
            auto made = claims_.make(
                std::max(bytes, std::min(k_least, total_)), [this] { return format_bytes(total_); },
                [&](Milliseconds time) {
                    std::this_thread::sleep_for(time);
                    if (auto heard = transfer_.look(); !heard) ended = std::move(heard).error();
                    return ended.has_value();
                },
                7 * k_least);
            if (ended) return *ended;
            if (!made) return std::move(made).error();
            left_ = made->bytes();
            claim_ = std::make_shared<store::HostClaim>(*std::move(made));
        }
        left_ -= bytes;
        total_ -= bytes;
        return claim_;
    }

private:
    Transfer& transfer_;
    store::HostClaims claims_;
    Bytes total_; ///< still to be taken
    Bytes left_ = 0;
    std::shared_ptr<store::HostClaim> claim_;
};

} // namespace

Result<void> relay(Transfer& transfer, std::span<const HostCopy> copies, const store::ClaimOptions& claims) {
    std::vector<store::SnapshotExtent> extents(copies.size());
    std::vector<driver::AddressSpan> device;
    device.reserve(copies.size());
    Bytes total = 0;
    for (std::size_t i = 0; i < copies.size(); ++i) {
        extents[i].bytes = copies[i].device.bytes;
        device.push_back(copies[i].device);
        total += copies[i].device.bytes;
    }
    const auto places = store::places_of(extents);
    const auto slots = Staging::slots_for(places.size(), false, transfer.options);
    const store::StayNear near(transfer.session.bus_id()); // as will the threads that this one starts
    const auto move_all = [&](Staging& staging) -> Result<void> {
        Claimer claimer(transfer, claims, total);
        FirstFailure failure;
        DeviceSource source(transfer.session, staging, device, extents, transfer.progress);
        auto* const steps = &transfer.session.steps();
        auto threads = store::ThreadPool::start("gpu-sleep-move", transfer.options.relay_threads);
        if (!threads) return std::move(threads).error();
        for (const auto& place : places) {
            if (failure.has_failed()) break;
            const auto& copy = copies[place.extent];
            const auto content = source.take(place);
            if (!content) return content.error();
            auto claim = claimer.take(place.bytes);
            if (!claim) return std::move(claim).error();
            (*threads)->post([&source, &failure, &place, steps, arena = copy.arena,
                              at = copy.at + place.offset, bytes = *content,
                              held = *std::move(claim)](std::size_t) {
                const model::StepClock::Timed timed(steps, model::Step::populate);
                if (auto written = guarded([&] { return arena->write(at, bytes); }); !written)
                    failure.note(std::move(written).error());
                source.release(place);
            });
        }
        threads->reset(); // once all is there
        return failure.result();
    };
    return with_staging(transfer.staging, transfer.session, transfer.pinner, slots, transfer.options,
                        transfer.progress, move_all);
}

} // namespace gpu_sleep::contents
