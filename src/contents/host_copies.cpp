// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Checking, compressing and decoding.

#include "contents/host_copies.hpp"

#include "base/guard.hpp"
#include "driver/fingerprint_key.hpp"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>

namespace gpu_sleep::contents {

bool is_as_sealed(const driver::FingerprintKey& key, const std::byte* memory, Bytes bytes,
                  const driver::Fingerprint& seal) noexcept {
    const driver::FingerprintBlock block{reinterpret_cast<std::uintptr_t>(memory), bytes};
    driver::Fingerprint found;
    driver::fingerprint_on_host(key, &block, &found, 1);
    return found == seal;
}

Result<std::unique_ptr<CopyCheck>> CopyCheck::start(std::vector<Copy> copies, unsigned threads) {
    constexpr std::size_t k_at_once = 32; // 3 ms
    const auto key = GPU_SLEEP_TRY(driver::process_fingerprint_key());
    std::unique_ptr<CopyCheck> check(new CopyCheck(std::move(copies), *key));
    const auto count = check->copies_.size();
    if (count == 0) return check;
    const auto useful = std::min<std::size_t>({threads, std::thread::hardware_concurrency(), count});
    check->threads_ = GPU_SLEEP_TRY(
        ThreadPool::start("gpu-sleep-check", static_cast<unsigned>(std::max<std::size_t>(1, useful))));
    for (std::size_t first = 0; first < count; first += k_at_once)
        check->threads_->post([raw = check.get(), first, some = std::min(k_at_once, count - first)](
                                  std::size_t) { raw->check(first, some); });
    return check;
}

void CopyCheck::check(std::size_t first, std::size_t count) noexcept {
    std::vector<Copy> damaged;
    auto done = guarded([&] {
        std::vector<std::byte> buffer;
        for (auto i = first; i < first + count && !is_ended_; ++i) {
            const auto& copy = copies_[i];
            const auto bytes = copy.device.bytes;
            const auto* const memory = copy.place.batch->memory({copy.place.at, bytes}, buffer);
            if (!is_as_sealed(key_, memory, bytes, copy.seal)) damaged.push_back(copy);
        }
    });
    const std::lock_guard lock(mutex_);
    auto noted = guarded([&] { damaged_.insert(damaged_.end(), damaged.begin(), damaged.end()); });
    if (!noted) done = std::move(noted);
    if (!done && !failure_) failure_ = std::move(done).error();
    checked_ += count;
    changed_.notify_all();
}

Result<std::vector<CopyCheck::Copy>> CopyCheck::finish(const std::function<Result<void>()>& listen) {
    constexpr Milliseconds k_between{100};
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return checked_ == copies_.size(); };
    while (!changed_.wait_for(lock, k_between, is_over)) {
        lock.unlock();
        GPU_SLEEP_TRY(listen());
        lock.lock();
    }
    if (failure_) return *failure_;
    return std::exchange(damaged_, {});
}

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
    const auto key = GPU_SLEEP_TRY(driver::process_fingerprint_key());
    std::unique_ptr<MemorySource> source(new MemorySource(parts, described, progress));
    source->key_ = key;
    std::vector<std::byte> unused;
    for (const auto& part : parts) {
        const auto& from = part.from();
        if (!from.batch->memory({from.at, 1}, unused))
            return make_error(ErrorCode::internal, "contents in {} are not in memory",
                              from.batch->keeper().where());
    }
    source->workers_ = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-check", k_checkers));
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
