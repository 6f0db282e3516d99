// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sources and sinks of chunks, and the buffers between.

#include "contents/stored.hpp"

#include "base/guard.hpp"
#include "contents/copy_check.hpp"
#include "driver/fingerprint_key.hpp"
#include "store/arena_preparer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

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

/// Runs `job(bytes)`, which may take so many bytes of buffers: as many as beside a sleep, fewer where host
/// memory is short, and fewer again when there are not even those. Errors: those of the job.
template <class Job>
[[nodiscard]] Result<void> with_buffers(const HostUse& options, Job&& job) {
    constexpr Bytes k_least = 4 * codec::k_chunk_bytes; // slow, but works
    const auto space = options.budget->headroom().bytes / 2;
    for (auto bytes = std::max(std::min(options.staging, space), k_least);;
         bytes = std::max(bytes / 2, k_least)) {
        auto done = job(bytes);
        const bool is_short = !done && done.error().code == ErrorCode::out_of_host_memory &&
                              done.error().where != store::HostBudget::k_where;
        if (!is_short || bytes == k_least) return done;
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

/// Waits until host memory has its pages, and heeds the asker meanwhile.
using MakeReady = std::function<Result<void>(std::span<const std::byte>)>;

/// Contents of a store on their way to the host cache.
class CacheSink final : public store::ChunkSink {
public:
    /// `memory` says where each extent goes; only those that are read are used. All outlive it.
    CacheSink(const std::vector<std::byte*>& memory, const MakeReady& make_ready,
              ProgressCounter& progress) noexcept
        : memory_(memory), make_ready_(make_ready), progress_(progress) {}

    Result<std::span<std::byte>> space(const ChunkPlace& place) override {
        const std::span<std::byte> memory(memory_[place.extent] + place.offset, place.bytes);
        GPU_SLEEP_TRY(make_ready_(memory));
        return memory;
    }
    Result<void> deliver(const ChunkPlace& place, std::span<const std::byte> /*content*/) override {
        return progress_.add(place.bytes);
    }

private:
    const std::vector<std::byte*>& memory_;
    const MakeReady& make_ready_;
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

/// `of(each)` is the place of each of `items`: by batch, and in order there.
template <class Item, class Of>
std::map<Batch*, std::vector<Item>> by_batch(std::span<const Item> items, Of&& of) {
    std::map<Batch*, std::vector<Item>> found;
    for (const auto& item : items) found[of(item).batch].push_back(item);
    for (auto& [batch, all] : found)
        std::sort(all.begin(), all.end(), [&](const Item& a, const Item& b) { return of(a).at < of(b).at; });
    return found;
}

/// Adds the extents that have `items`, in order, to `wanted`; `begins(extent, item)` is told where the first
/// of an extent lies from its start on.
template <class Item, class Of, class Begins>
std::vector<std::size_t> extents_of(const Batch& batch, const std::vector<Item>& items, Of&& of,
                                    Begins&& begins) {
    std::vector<std::size_t> wanted;
    for (const auto& item : items) {
        const auto extent = batch.extent_at(of(item).at);
        if (!wanted.empty() && wanted.back() == extent) continue;
        begins(extent, item, of(item).at - batch.start_of(extent));
        wanted.push_back(extent);
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
    const auto place_of = [](const Move& block) -> const Place& { return block.place; };
    const auto batches = by_batch(blocks, place_of);
    std::size_t chunks = 0;
    for (const auto& [batch, wanted] : batches)
        chunks = std::max(chunks, store::places_of(batch->extents()).size());
    const auto slots = Staging::slots_for(chunks, false, transfer.options);
    for (const auto& [key, wanted] : batches) {
        const auto& batch = *key; // which lambdas may name
        std::vector<driver::DeviceAddress> addresses(batch.extents().size());
        const auto extents =
            extents_of(batch, wanted, place_of, [&](std::size_t extent, const Move& block, Bytes offset) {
                addresses[extent] = block.device.address - offset;
            });
        const auto get = [&](Staging& staging) {
            DeviceSink sink(transfer.session, staging, addresses, transfer.progress);
            return get_some(batch, extents, sink, beside(transfer, staging));
        };
        auto done = transfer.with_staging(slots, get);
        if (done) continue;
        if (!is_about_store(done.error().code)) return done;
        const auto error = naming(batch, std::move(done).error());
        for (const auto& block : wanted) failures.try_emplace(block.range, error);
    }
    return {};
}

Result<void> store_from_cache(Handover& handover, Batch& batch, std::span<const Carried> blocks) {
    for (const auto& block : blocks) GPU_SLEEP_TRY(block.from.batch->unprotect());
    const auto key = GPU_SLEEP_TRY(driver::process_fingerprint_key());
    CacheSource source(batch, blocks, *key, handover.progress);
    return with_buffers(handover.options, [&](Bytes buffer_bytes) {
        CodingOptions options;
        options.buffer_bytes = buffer_bytes;
        options.under_way = static_cast<std::size_t>(buffer_bytes / codec::k_chunk_bytes);
        return put_all(batch, source, options, handover.progress);
    });
}

Result<void> restore_to_cache(Handover& handover, Batch& batch, std::span<const Carried> blocks) {
    auto& arena = *batch.arena();
    store::ArenaPreparer::Options filling;
    filling.threads = handover.options.fill_threads;
    filling.budget = handover.options.budget;
    const auto preparer = GPU_SLEEP_TRY(store::ArenaPreparer::start({&arena}, filling));
    const MakeReady make_ready = [&](std::span<const std::byte> memory) {
        Result<void> ready;
        const auto offset = static_cast<Bytes>(memory.data() - arena.data());
        store::HostArena::for_each_piece({offset, memory.size()}, [&](std::size_t piece, Span) {
            if (ready) ready = preparer->wait(arena, piece, [&] { return handover.progress.add(0); });
        });
        return ready;
    };
    const auto place_of = [](const Carried& block) -> const Place& { return block.from; };
    for (const auto& [key, wanted] : by_batch(blocks, place_of)) {
        const auto& from = *key;
        std::vector<std::byte*> memory(from.extents().size());
        const auto extents =
            extents_of(from, wanted, place_of, [&](std::size_t extent, const Carried& block, Bytes offset) {
                memory[extent] = arena.data() + (block.to.at - offset);
            });
        auto done = with_buffers(handover.options, [&](Bytes buffer_bytes) {
            CodingOptions options;
            options.buffer_bytes = buffer_bytes;
            CacheSink sink(memory, make_ready, handover.progress);
            return get_some(from, extents, sink, options);
        });
        if (!done) return naming(from, std::move(done).error());
    }
    return {};
}

} // namespace gpu_sleep::contents
