// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Checking what is in host memory ahead of the writer, and reading straight to where contents will lie.

#include "contents/handover.hpp"

#include "base/guard.hpp"
#include "contents/copy_check.hpp"
#include "driver/fingerprint_key.hpp"

#include <cstdint>
#include <utility>

namespace gpu_sleep::contents {
namespace {

/// A core checks more than twice what one compresses; the disk writes less than two compress.
constexpr unsigned k_checkers = 4;
/// Chunks that are checked before they are wanted.
constexpr std::size_t k_ahead = std::size_t{4} * k_checkers;

} // namespace

MemorySource::MemorySource(std::span<const Carried> parts,
                           const std::vector<store::SnapshotExtent>& described, ProgressCounter& progress)
    : parts_(parts), described_(described), progress_(progress), places_(store::places_of(described)),
      chunks_(places_.size()) {}

Result<std::unique_ptr<MemorySource>>
MemorySource::create(std::span<const Carried> parts, const std::vector<store::SnapshotExtent>& described,
                     ProgressCounter& progress) {
    const auto key = driver::process_fingerprint_key();
    if (!key) return key.error();
    std::unique_ptr<MemorySource> source(new MemorySource(parts, described, progress));
    source->key_ = *key;
    std::vector<std::byte> unused;
    for (const auto& part : parts) {
        const auto& from = part.from();
        if (!from.batch->memory({from.at, 1}, unused))
            return make_error(ErrorCode::internal, "contents in {} lie in no memory",
                              from.batch->keeper().where());
    }
    auto workers = store::ThreadPool::start("gpu-sleep-check", k_checkers);
    if (!workers) return std::move(workers).error();
    source->workers_ = *std::move(workers);
    return source;
}

MemorySource::State MemorySource::state_of(const store::ChunkPlace& place, Chunk& chunk) const noexcept {
    static_assert(codec::k_chunk_bytes % k_block_bytes == 0);
    const auto& part = parts_[place.extent];
    const auto found = guarded([&] {
        chunk.memory = part.from().batch->memory({part.from().at + place.offset, place.bytes}, chunk.buffer);
    });
    if (!found) return State::no_memory;
    const auto* block = &part.blocks[place.offset / k_block_bytes];
    for (Bytes at = 0; at < place.bytes; at += k_block_bytes, ++block) {
        const auto bytes = std::min<Bytes>(k_block_bytes, place.bytes - at);
        if (!is_as_sealed(*key_, chunk.memory + at, bytes, block->seal)) return State::damaged;
    }
    return State::whole;
}

void MemorySource::check(const store::ChunkPlace& place) noexcept {
    auto& chunk = chunks_[place.number];
    const auto state = state_of(place, chunk);
    {
        const std::lock_guard lock(mutex_);
        chunk.state = state;
    }
    changed_.notify_all();
}

MemorySource::State MemorySource::wait_for(std::size_t chunk) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return chunks_[chunk].state != State::unchecked; });
    return chunks_[chunk].state;
}

Result<std::span<const std::byte>> MemorySource::take(const store::ChunkPlace& place) {
    for (; next_ < std::min(place.number + k_ahead, places_.size()); ++next_)
        workers_->post([this, &wanted = places_[next_]](std::size_t) { check(wanted); });
    const auto& extent = described_[place.extent];
    const auto state = wait_for(place.number);
    if (state == State::no_memory)
        return make_error(ErrorCode::out_of_host_memory, "no memory to read what is kept in host memory");
    if (state == State::damaged)
        return make_error(ErrorCode::damaged,
                          "contents of tag '{}' in host memory changed while asleep, at {:#x}", extent.tag,
                          extent.address + place.offset);
    GPU_SLEEP_TRY(progress_.add(place.bytes));
    return std::span<const std::byte>(chunks_[place.number].memory, place.bytes);
}

Result<std::span<std::byte>> MemorySink::space(const store::ChunkPlace& place) {
    const std::span<std::byte> memory(memory_[place.extent] + place.offset, place.bytes);
    GPU_SLEEP_TRY(make_ready_(memory));
    return memory;
}

Result<void> MemorySink::deliver(const store::ChunkPlace& place, std::span<const std::byte> /*content*/) {
    return progress_.add(place.bytes);
}

} // namespace gpu_sleep::contents
