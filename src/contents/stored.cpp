// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sources and sinks of chunks, and the buffers between.

#include "contents/stored.hpp"

#include "contents/copy_check.hpp"
#include "driver/fingerprint_key.hpp"
#include "store/arena_preparer.hpp"

#include <fmt/format.h>

namespace gpu_sleep::contents {
namespace {

using store::ChunkPlace;
using store::CodingOptions;

/// Whether a failed reading is the store's trouble, and so that of its contents alone.
bool is_about_store(ErrorCode code) noexcept {
    return code == ErrorCode::damaged || code == ErrorCode::io_failed || code == ErrorCode::not_permitted ||
           code == ErrorCode::protocol_mismatch;
}

/// Has an error that bytes of a file are wrong say of which: one who puts them right mends it.
Error naming(const Batch& batch, Error error) {
    if (error.code == ErrorCode::damaged)
        error.message = fmt::format("{}: {}; the process wakes once the bytes of that file are put back",
                                    batch.parcel()->name.string(), error.message);
    return error;
}

/// Runs `job(coding options)`, which may take so many bytes of buffers: as many as beside a sleep, fewer
/// where host memory is short, and fewer again when there are not even those. Errors: those of the job.
template <class Job>
[[nodiscard]] Result<void> with_buffers(const HostUse& options, Job&& job) {
    constexpr Bytes k_least = 4 * codec::k_chunk_bytes; // slow, but works
    const auto space = options.budget->headroom().bytes / 2;
    CodingOptions coding;
    coding.buffer_bytes = std::max(std::min(options.staging, space), k_least);
    for (;; coding.buffer_bytes = std::max(coding.buffer_bytes / 2, k_least)) {
        auto done = job(coding);
        const bool is_short = !done && done.error().code == ErrorCode::out_of_host_memory &&
                              done.error().where != store::HostBudget::k_where;
        if (!is_short || coding.buffer_bytes == k_least) return done;
    }
}

/// What is kept in the host cache, as chunks are pulled. Each block is compared with its seal on the thread
/// that encodes it: that takes a few processors, and no time (tests/gpu/file_store.py compares with a sleep
/// to files).
class CacheSource final : public store::ChunkSource {
public:
    CacheSource(const Batch& to, std::span<const Carried> blocks, const driver::FingerprintKey& key,
                ProgressCounter& progress)
        : to_(to), blocks_(blocks), key_(key), progress_(progress) {}

    Result<std::span<const std::byte>> take(const ChunkPlace& place) override {
        GPU_SLEEP_TRY(progress_.add(place.bytes));
        const auto& from = blocks_of(place).front().from;
        return std::span<const std::byte>(from.batch->arena()->at(from.at), place.bytes);
    }
    Result<std::span<const std::byte>> look_at(const ChunkPlace& place, std::span<const std::byte> taken,
                                               std::vector<std::byte>& buffer) const override {
        const auto blocks = blocks_of(place);
        std::vector<std::byte> apart;
        const auto* at = taken.data();
        bool is_gathered = false;
        for (const auto& block : blocks) {
            const auto bytes = block.to.bytes;
            const auto* const memory = read_block(block.from, bytes, apart);
            if (!memory || !is_as_sealed(key_, memory, bytes, block.seal)) {
                const auto& extent = to_.extents()[place.extent];
                return make_error(ErrorCode::damaged,
                                  "contents of tag '{}' in host memory changed while asleep, at {:#x}",
                                  extent.tag, extent.address + place.offset);
            }
            if (!is_gathered && memory != at) {
                is_gathered = true;
                buffer.reserve(place.bytes); // or it would grow to more than look_bytes()
                buffer.assign(taken.data(), at);
            }
            if (is_gathered) buffer.insert(buffer.end(), memory, memory + bytes);
            at += bytes;
        }
        return is_gathered ? std::span<const std::byte>(buffer) : taken;
    }
    Bytes look_bytes() const noexcept override { return codec::k_chunk_bytes + 2 * k_block_bytes; }
    void release(const ChunkPlace& /*place*/) noexcept override {}

private:
    [[nodiscard]] std::span<const Carried> blocks_of(const ChunkPlace& place) const noexcept {
        static_assert(codec::k_chunk_bytes % k_block_bytes == 0);
        const auto at = to_.start_of(place.extent) + place.offset;
        const auto first =
            std::lower_bound(blocks_.begin(), blocks_.end(), at,
                             [](const Carried& each, Bytes wanted) { return each.to.at < wanted; });
        return {first, block_count(place.bytes)};
    }

    const Batch& to_;
    std::span<const Carried> blocks_;
    const driver::FingerprintKey& key_;
    ProgressCounter& progress_;
};

/// Contents of a store on their way to a device.
class DeviceSink final : public store::ChunkSink {
public:
    /// `addresses` says where on the device each extent goes; only those that are read are used. All outlive
    /// it.
    DeviceSink(Transfer& transfer, Staging& staging,
               const std::vector<driver::DeviceAddress>& addresses) noexcept
        : transfer_(transfer), staging_(staging), addresses_(addresses) {}

    Result<std::span<std::byte>> space(const ChunkPlace& place) override {
        // Spaces are given and delivered in one order, so the ring is never longer than what is on its way.
        const auto slot = given_++ % staging_.slots();
        GPU_SLEEP_TRY(transfer_.session.wait(staging_.copied(slot)));
        return std::span<std::byte>(staging_.slot(slot), place.bytes);
    }
    Result<void> deliver(const ChunkPlace& place, std::span<const std::byte> content) override {
        const auto slot = delivered_++ % staging_.slots();
        GPU_SLEEP_TRY(transfer_.session.copy_to_device(addresses_[place.extent] + place.offset,
                                                       content.data(), content.size()));
        GPU_SLEEP_TRY(transfer_.session.set(staging_.copied(slot)));
        return transfer_.progress.add(place.bytes);
    }

private:
    Transfer& transfer_;
    Staging& staging_;
    const std::vector<driver::DeviceAddress>& addresses_;
    std::size_t given_ = 0; ///< spaces
    std::size_t delivered_ = 0;
};

/// Contents of a store on their way to the host cache.
class CacheSink final : public store::ChunkSink {
public:
    /// `starts` says where in the arena each extent begins; only those that are read are used. All outlive
    /// it.
    CacheSink(store::HostArena& arena, store::ArenaPreparer& preparer, const std::vector<Bytes>& starts,
              ProgressCounter& progress) noexcept
        : arena_(arena), preparer_(preparer), starts_(starts), progress_(progress) {}

    Result<std::span<std::byte>> space(const ChunkPlace& place) override {
        const Span span{starts_[place.extent] + place.offset, place.bytes};
        GPU_SLEEP_TRY(store::HostArena::for_each_piece(span, [&](std::size_t piece, Span) {
            return preparer_.wait(arena_, piece, [&] { return progress_.add(0); });
        }));
        return std::span(arena_.data() + span.offset, place.bytes);
    }
    Result<void> deliver(const ChunkPlace& place, std::span<const std::byte> /*content*/) override {
        return progress_.add(place.bytes);
    }

private:
    store::HostArena& arena_;
    store::ArenaPreparer& preparer_;
    const std::vector<Bytes>& starts_;
    ProgressCounter& progress_;
};

/// What coding may take beside the ring.
CodingOptions beside(const Transfer& transfer, const Staging& staging) noexcept {
    CodingOptions options;
    options.under_way = staging.ahead();
    options.buffer_bytes = std::min(transfer.options.staging, staging.buffer_bytes());
    return options;
}

/// Puts all that `source` has of the batch. Errors: those of Parcel and of the source.
Result<void> put_all(Batch& batch, store::ChunkSource& source, CodingOptions options,
                     ProgressCounter& progress) {
    options.buffer_bytes -= std::min(options.buffer_bytes, batch.parcel()->buffer_bytes);
    auto done = guarded([&]() -> Result<void> {
        const auto put = GPU_SLEEP_TRY(batch.parcel()->put());
        GPU_SLEEP_TRY(store::encode_all(store::places_of(batch.extents()), source, put, options));
        progress.note_call(true);
        GPU_SLEEP_TRY(batch.parcel()->flush());
        progress.note_call(false);
        return {};
    });
    if (!done && done.error().code == ErrorCode::out_of_disk)
        done.error().message = fmt::format("{}: {}", batch.parcel()->where.string(), done.error().message);
    return done;
}

/// Brings the `wanted` extents of the batch to `sink`.
Result<void> get_some(const Batch& batch, const std::vector<std::size_t>& wanted, store::ChunkSink& sink,
                      const CodingOptions& options) {
    return guarded([&]() -> Result<void> {
        const auto get = GPU_SLEEP_TRY(batch.parcel()->get());
        return store::decode_all(store::places_of(batch.extents(), wanted), batch.extents(), sink, get,
                                 options);
    });
}

/// `place` of each of `items`, a member: by batch, and in order there.
template <class Item>
std::map<Batch*, std::vector<Item>> by_batch(std::span<const Item> items, Place Item::*place) {
    std::map<Batch*, std::vector<Item>> found;
    for (const auto& item : items) found[(item.*place).batch].push_back(item);
    for (auto& [batch, all] : found)
        std::ranges::sort(all, {}, [=](const Item& item) { return (item.*place).at; });
    return found;
}

/// What of a batch is wanted.
struct Wanted {
    std::vector<std::size_t> extents; ///< in order
    std::vector<Bytes> starts;        ///< of all extents: where those that are wanted begin on the other side
};

/// `items` have places in the batch, in order; `goes_to(item)` says where one goes.
template <class Item, class GoesTo>
Wanted wanted_of(const Batch& batch, const std::vector<Item>& items, Place Item::*place, GoesTo&& goes_to) {
    Wanted wanted{{}, std::vector<Bytes>(batch.extents().size())};
    for (const auto& item : items) {
        const auto at = (item.*place).at;
        const auto extent = batch.extent_at(at);
        if (!wanted.extents.empty() && wanted.extents.back() == extent) continue;
        wanted.starts[extent] = goes_to(item) - (at - batch.start_of(extent));
        wanted.extents.push_back(extent);
    }
    return wanted;
}

} // namespace

Result<void> store_from_device(Transfer& transfer, std::span<Batch* const> batches) {
    std::size_t chunks = 0; // of the longest: they share the ring
    bool in_memory = false;
    for (const auto* const batch : batches) {
        chunks = std::max(chunks, store::places_of(batch->extents()).size());
        in_memory |= batch->parcel()->is_in_memory;
    }
    const auto slots = Staging::slots_for(chunks, in_memory, transfer.options);
    for (auto* const batch : batches) {
        const auto put = [&](Staging& staging) {
            DeviceSource source(transfer.session, staging, batch->extents(), transfer.progress);
            return put_all(*batch, source, beside(transfer, staging), transfer.progress);
        };
        GPU_SLEEP_TRY(transfer.with_staging(slots, put));
    }
    return {};
}

Result<void> restore_to_device(Transfer& transfer, std::span<const Move> blocks, Failures& failures) {
    const auto batches = by_batch(blocks, &Move::place);
    std::size_t chunks = 0;
    for (const auto& [batch, its] : batches)
        chunks = std::max(chunks, store::places_of(batch->extents()).size());
    const auto slots = Staging::slots_for(chunks, false, transfer.options);
    for (const auto& [key, its] : batches) {
        const auto& batch = *key; // which lambdas may name
        const auto wanted =
            wanted_of(batch, its, &Move::place, [](const Move& block) { return block.device.address; });
        const auto get = [&](Staging& staging) {
            DeviceSink sink(transfer, staging, wanted.starts);
            return get_some(batch, wanted.extents, sink, beside(transfer, staging));
        };
        auto done = transfer.with_staging(slots, get);
        if (done) continue;
        if (!is_about_store(done.error().code)) return done;
        const auto error = naming(batch, std::move(done).error());
        for (const auto& block : its) failures.try_emplace(block.range, error);
    }
    return {};
}

namespace {

/// Brings `blocks`, which lie in the host cache and were added in this order, to the store of `batch`, which
/// has begun.
Result<void> store_from_cache(const HostUse& use, ProgressCounter& progress, Batch& batch,
                              std::span<const Carried> blocks) {
    for (const auto& block : blocks) GPU_SLEEP_TRY(block.from.batch->unprotect());
    const auto key = GPU_SLEEP_TRY(driver::process_fingerprint_key());
    CacheSource source(batch, blocks, *key, progress);
    return with_buffers(use, [&](CodingOptions options) {
        options.under_way = static_cast<std::size_t>(options.buffer_bytes / codec::k_chunk_bytes);
        return put_all(batch, source, options, progress);
    });
}

/// Brings `blocks`, which lie in stores, to the host cache's `batch`, which has begun.
Result<void> restore_to_cache(const HostUse& use, ProgressCounter& progress, Batch& batch,
                              std::span<const Carried> blocks) {
    const store::ClaimOptions claims{.budget = use.budget};
    const auto preparer =
        GPU_SLEEP_TRY(store::ArenaPreparer::start({batch.arena()}, {claims, use.fill_threads}));
    for (const auto& [key, its] : by_batch(blocks, &Carried::from)) {
        const auto& from = *key;
        const auto wanted =
            wanted_of(from, its, &Carried::from, [](const Carried& block) { return block.to.at; });
        auto done = with_buffers(use, [&](const CodingOptions& options) {
            CacheSink sink(*batch.arena(), *preparer, wanted.starts, progress);
            return get_some(from, wanted.extents, sink, options);
        });
        if (!done) return naming(from, std::move(done).error());
    }
    return {};
}

} // namespace

void Relocation::add(Label label, model::Store store, driver::DeviceAddress address, Number number) {
    auto moved = contents_.at(number);
    for_each_block(moved, [&](Block& block, Span span, std::size_t) {
        if (!block.is_stored() || block.is_in(store)) return;
        auto& target = targets_[{label.device, store, label.tag}];
        if (!target.batch)
            target.batch = batches_.emplace_back(contents_.make_batch(label, store, options_)).get();
        const auto to = target.batch->add(number, {address + span.offset, span.bytes});
        target.blocks.push_back({block.place, to, block.seal});
        block.place = to;
        bytes_[label.device] += span.bytes;
    });
    moved_.emplace(number, std::move(moved));
}

Bytes Relocation::bytes(int device) const noexcept {
    const auto found = bytes_.find(device);
    return found == bytes_.end() ? 0 : found->second;
}

Result<void> Relocation::carry(const Control& control) {
    for (const auto& batch : batches_) GPU_SLEEP_TRY(batch->begin());
    ProgressCounter progress(control, sum_of(bytes_, [](const auto& of_device) { return of_device.second; }));
    for (auto& [key, target] : targets_) {
        auto* const bring = target.batch->is_cached() ? restore_to_cache : store_from_cache;
        GPU_SLEEP_TRY(bring(contents_.options(), progress, *target.batch, target.blocks));
    }
    return {};
}

} // namespace gpu_sleep::contents
