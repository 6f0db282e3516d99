// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Laying blocks out, and what becomes of their places.

#include "contents/batch.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"

namespace gpu_sleep::contents {

using codec::BlockClass;
using store::HostArena;

bool Block::is_in(model::Store store) const noexcept {
    return is_stored() && place.batch->store() == store;
}

Bytes room_for(const codec::BlockPlan& plan, Bytes bytes) noexcept {
    constexpr Bytes k_growth = 512; // of so many bytes one: later contents differ by less, as a rule
    if (plan.block_class == BlockClass::raw) return bytes;
    return round_up(plan.coded_bytes + bytes / k_growth, HostArena::k_alignment);
}

Place Batch::add(Number range, driver::AddressSpan memory, const codec::BlockPlan& plan) {
    if (!is_cached_) {
        const bool follows = range == last_range_ && !extents_.empty() &&
                             extents_.back().address + extents_.back().bytes == memory.address &&
                             extents_.back().bytes % k_block_bytes == 0;
        if (!follows) {
            starts_.push_back(bytes_);
            extents_.push_back({memory.address, 0, label_.tag, label_.device});
        }
        extents_.back().bytes += memory.bytes;
        last_range_ = range;
    }
    const auto taken = is_cached_ ? room_for(plan, memory.bytes) : memory.bytes;
    live_ += taken;
    const Place place{this, bytes_, static_cast<std::uint32_t>(taken),
                      is_cached_ ? plan.block_class : BlockClass::raw};
    bytes_ += round_up(taken, HostArena::k_alignment);
    return place;
}

std::size_t Batch::extent_at(Bytes at) const noexcept {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin()) -
           1;
}

Result<Bytes> Batch::needs() const {
    if (is_cached_) return bytes_;
    if (parcel_) return parcel_->bytes;
    const auto parcel = GPU_SLEEP_TRY(store_->reserve(extents_));
    return parcel->bytes;
}

Result<void> Batch::begin() {
    if (!is_cached_) {
        parcel_ = GPU_SLEEP_TRY(store_->reserve(extents_));
        store_.reset(); // which holds its directory open
        return {};
    }
    arena_ = GPU_SLEEP_TRY(HostArena::create(bytes_, pinner_, stock_, budget_));
    return {};
}

bool Batch::forget(Span span) noexcept {
    live_ -= span.bytes;
    return arena_ && arena_->forget(span);
}

bool Batch::retain() noexcept {
    if (!parcel_) return true;
    return awake_ < live_ ? parcel_->is_kept : bool(guarded([this] { return parcel_->close(); }));
}

bool Batch::take_back(std::string_view tag, const store::ParcelStore& wanted) {
    // All that is in it, as it says, and where the next sleep wants it.
    const auto whole = sum_of(extents_, &store::SnapshotExtent::bytes);
    const bool is_closed = parcel_ && parcel_->bytes == 0;
    if (live_ != whole || tag != label_.tag || !is_closed || parcel_->identity != wanted.identity)
        return false;
    parcel_->where = wanted.where;
    const auto taken = parcel_->open();
    if (taken) return true;
    log::info("a kept file cannot be used again, so its contents are written to a new one: {}",
              taken.error().message);
    return false;
}

void Batch::retire(Files files) noexcept {
    is_left_behind_ = parcel_ && !parcel_->forget(files == Files::as_asked);
}

std::optional<std::filesystem::path> Batch::left_behind() const {
    return is_left_behind_ ? std::optional(parcel_->name) : std::nullopt;
}

const std::byte* read_block(const Place& place, Bytes bytes, std::vector<std::byte>& buffer) {
    if (!place.is_coded()) return place.batch->arena()->read(place.span(), buffer);
    std::vector<std::byte> apart;
    const std::span coded(place.batch->arena()->read(place.span(), apart), place.bytes);
    buffer.resize(bytes);
    return codec::decode_block(place.block_class, coded, buffer) ? buffer.data() : nullptr;
}

} // namespace gpu_sleep::contents
