// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pinning in a context of the moment, the ring, and telling what has passed.

#include "contents/transfer.hpp"

#include "driver/context.hpp"
#include "store/arena_preparer.hpp"

namespace gpu_sleep::contents {

Result<void> DriverPinner::pin(std::span<std::byte> memory) {
    const auto alive = GPU_SLEEP_TRY(driver::first_active_context(api_));
    if (!alive.has_value())
        return make_error(ErrorCode::driver_failed, "there is no context to pin host memory in");
    const driver::RelaxedCaptureMode relaxed(api_);
    const driver::CurrentContext current(api_, alive->get());
    return driver::pin_host_memory(api_, memory);
}

bool DriverPinner::unpin(std::span<std::byte> memory) noexcept {
    constexpr int k_tries = 2; // a context may vanish between its being found and entered
    const driver::RelaxedCaptureMode relaxed(api_);
    for (int i = 0; i < k_tries; ++i) {
        const auto unpinned = guarded([&]() -> Result<void> {
            const auto alive = GPU_SLEEP_TRY(driver::first_active_context(api_));
            if (!alive.has_value()) return {}; // its registration went with the last context
            const driver::CurrentContext current(api_, alive->get());
            return driver::unpin_host_memory(api_, memory);
        });
        if (unpinned) return true;
    }
    return false;
}

std::size_t Staging::slots_for(std::size_t chunks, bool has_files_in_memory, const HostUse& options) {
    // The ring is one part, buffers take two, and what lies in host memory takes the rest.
    const Bytes parts = has_files_in_memory ? 16 : 3;
    const auto space = options.budget->headroom().bytes;
    const auto most = std::min(options.staging, space / parts) / codec::k_chunk_bytes;
    return std::max(static_cast<std::size_t>(std::min<Bytes>(most, chunks + 1)), k_min_slots);
}

Result<std::unique_ptr<Staging>> Staging::create(store::Pinner& pinner, std::size_t slots,
                                                 const HostUse& options, ProgressCounter& progress) {
    auto arena = GPU_SLEEP_TRY(store::HostArena::create(slots * codec::k_chunk_bytes, &pinner));
    store::ClaimOptions claims{.budget = options.budget, .spends_reserve = slots == k_min_slots};
    if (!claims.spends_reserve) claims.patience = Milliseconds(0); // fewer may be there at once
    auto preparer = GPU_SLEEP_TRY(store::ArenaPreparer::start({arena.get()}, {claims, options.fill_threads}));
    for (std::size_t piece = 0; piece < arena->piece_count(); ++piece)
        GPU_SLEEP_TRY(preparer->wait(*arena, piece, [&] { return progress.add(0); }));
    return std::unique_ptr<Staging>(new Staging(std::move(arena), slots));
}

DeviceSource::DeviceSource(driver::DeviceSession& session, Staging& staging,
                           const std::vector<store::SnapshotExtent>& extents, ProgressCounter& progress,
                           std::function<Result<void>(std::size_t)> reach)
    : session_(session), staging_(staging), extents_(extents), places_(store::places_of(extents)),
      progress_(progress), reach_(std::move(reach)), slot_of_(places_.size()) {
    for (std::size_t i = staging.slots(); i-- > 0;) free_.push_back(i);
}

std::optional<std::size_t> DeviceSource::find_slot(bool waits) {
    const MutexLock lock(mutex_);
    if (waits) freed_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return !free_.empty(); });
    if (free_.empty()) return std::nullopt;
    const auto slot = free_.back();
    free_.pop_back();
    return slot;
}

Result<void> DeviceSource::queue(std::size_t number, std::size_t slot) {
    const auto& place = places_[number];
    slot_of_[number] = slot;
    GPU_SLEEP_TRY(reach_(place.extent));
    GPU_SLEEP_TRY(session_.copy_to_host(staging_.slot(slot), extents_[place.extent].address + place.offset,
                                        place.bytes));
    return session_.set(staging_.copied(slot));
}

Result<std::span<const std::byte>> DeviceSource::take(const store::ChunkPlace& place) {
    while (next_ < places_.size()) {
        // The wanted one is waited for; those after it are copied ahead if there is space.
        const auto slot = find_slot(next_ <= place.number);
        if (!slot) break;
        GPU_SLEEP_TRY(queue(next_, *slot));
        ++next_;
    }
    const auto slot = slot_of_[place.number];
    GPU_SLEEP_TRY(session_.wait(staging_.copied(slot)));
    GPU_SLEEP_TRY(progress_.add(place.bytes));
    return std::span<const std::byte>(staging_.slot(slot), place.bytes);
}

void DeviceSource::release(const store::ChunkPlace& place) noexcept {
    {
        const MutexLock lock(mutex_);
        free_.push_back(slot_of_[place.number]);
    }
    freed_.notify_one();
}

Transfer::~Transfer() {
    if (staging) ignoring_errors([this] { static_cast<void>(session.synchronize()); });
}

Result<void> Transfer::queued(Bytes bytes, bool is_coded) {
    GPU_SLEEP_TRY(session.mark(bytes, is_coded));
    return look();
}

Result<void> Transfer::look() {
    const auto bytes = session.look_at_marks();
    return bytes ? progress.add(*bytes) : bytes.error();
}

Result<void> Transfer::wait() {
    return session.wait_marks([this](Bytes bytes) { return progress.add(bytes); });
}

Result<void> Transfer::with_staging(std::size_t slots, const std::function<Result<void>(Staging&)>& job) {
    const auto attempt = [&]() -> Result<void> {
        if (!staging) staging = GPU_SLEEP_TRY(Staging::create(pinner, slots, options, progress));
        slots = staging->slots();
        return job(*staging);
    };
    for (;;) {
        auto done = attempt();
        if (done || slots == Staging::k_min_slots || done.error().code != ErrorCode::out_of_host_memory)
            return done;
        // What a file in host memory lacks is more than a ring has.
        if (staging && done.error().where == store::HostBudget::k_where) return done;
        GPU_SLEEP_TRY(session.synchronize()); // nothing may still use the ring
        staging.reset();
        slots = std::max(slots / 2, Staging::k_min_slots);
    }
}

} // namespace gpu_sleep::contents
