// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Work of the processors on contents in host memory: comparing copies with their seals, and moving
// contents between host memory and a snapshot while the disk writes or reads. No device takes part.
// Internal to this module.

#pragma once

#include "base/threads.hpp"
#include "contents/host_use.hpp"
#include "contents/keeper.hpp"
#include "store/host_memory.hpp"
#include "store/snapshot_reader.hpp"
#include "store/snapshot_writer.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace gpu_sleep::contents {

/// Whether a block at `memory` in host memory is what its seal says. Thread-safe.
[[nodiscard]] bool is_as_sealed(const driver::FingerprintKey& key, const std::byte* memory, Bytes bytes,
                                const driver::Fingerprint& seal) noexcept;

/// Takes the fingerprints of copies on threads of its own, while other work goes on.
class CopyCheck {
public:
    struct Copy : Move {
        driver::Fingerprint seal;
    };

    /// Begins. Nobody writes to `copies`, which are in host memory and within reach, until finish() has
    /// returned. Errors: out_of_threads, io_failed (no key).
    [[nodiscard]] static Result<std::unique_ptr<CopyCheck>> start(std::vector<Copy> copies, unsigned threads);
    CopyCheck(const CopyCheck&) = delete;
    CopyCheck& operator=(const CopyCheck&) = delete;
    /// Does not wait for what is not yet begun.
    ~CopyCheck() { is_ended_ = true; }

    /// Waits; calls `listen` now and then meanwhile. Returns the copies that are not what their seals say.
    /// Errors: out_of_host_memory, those of `listen`, which end the waiting.
    [[nodiscard]] Result<std::vector<Copy>> finish(const std::function<Result<void>()>& listen);

private:
    CopyCheck(std::vector<Copy> copies, const driver::FingerprintKey& key)
        : copies_(std::move(copies)), key_(key) {}
    /// Checks `count` copies from `first` on.
    void check(std::size_t first, std::size_t count) noexcept;

    const std::vector<Copy> copies_;
    const driver::FingerprintKey& key_;
    std::atomic<bool> is_ended_{false};
    std::mutex mutex_; ///< guards all below, but for the threads
    std::condition_variable changed_;
    std::size_t checked_ = 0;
    std::vector<Copy> damaged_;
    std::optional<Error> failure_;
    std::unique_ptr<ThreadPool> threads_; ///< ended first
};

/// Runs `job(bytes)`, which may take so many bytes of buffers: as many as beside a sleep, fewer where host
/// memory is short, and fewer again when there are not even those. Errors: those of the job.
template <class Job>
[[nodiscard]] Result<void> with_buffers(const HostUse& options, Job&& job) {
    constexpr Bytes k_least = 4 * codec::k_chunk_bytes; // slow, but works
    const auto space = store::host_headroom_beyond(options.host_reserve).bytes / 2;
    for (auto bytes = std::max(std::min(options.staging, space), k_least);;
         bytes = std::max(bytes / 2, k_least)) {
        auto done = job(bytes);
        const bool is_short = !done && done.error().code == ErrorCode::out_of_host_memory &&
                              done.error().where != store::HostClaims::k_where;
        if (!is_short || bytes == k_least) return done;
    }
}

/// Kept contents in host memory, as a snapshot's writer pulls them. Each block is compared with its seal on
/// the way: that takes a few processors, and no time (tests/gpu/file_store.py compares with a sleep to
/// files).
class MemorySource final : public store::ChunkSource {
public:
    /// `parts`, each of which is an extent of `described`, and their batches outlive it. Errors:
    /// out_of_host_memory, out_of_threads, io_failed (no key), internal (they do not lie in memory).
    [[nodiscard]] static Result<std::unique_ptr<MemorySource>>
    create(std::span<const Carried> parts, const std::vector<store::SnapshotExtent>& described,
           ProgressCounter& progress);

    /// Errors: damaged, cancelled, timed_out.
    [[nodiscard]] Result<std::span<const std::byte>> take(const store::ChunkPlace& place) override;
    void release(const store::ChunkPlace& place) noexcept override { chunks_[place.number].buffer = {}; }

private:
    enum class State : std::uint8_t { unchecked, whole, damaged, no_memory };
    struct Chunk {
        const std::byte* memory = nullptr;
        std::vector<std::byte> buffer; ///< has it, where it lies apart
        State state = State::unchecked;
    };

    MemorySource(std::span<const Carried> parts, const std::vector<store::SnapshotExtent>& described,
                 ProgressCounter& progress);
    [[nodiscard]] State state_of(const store::ChunkPlace& place, Chunk& chunk) const noexcept;
    void check(const store::ChunkPlace& place) noexcept;
    [[nodiscard]] State wait_for(std::size_t chunk);

    std::span<const Carried> parts_;
    const std::vector<store::SnapshotExtent>& described_;
    ProgressCounter& progress_;
    const driver::FingerprintKey* key_ = nullptr;
    std::vector<store::ChunkPlace> places_;
    std::size_t next_ = 0; ///< place to check

    std::mutex mutex_; ///< guards the states
    std::condition_variable changed_;
    std::vector<Chunk> chunks_;           ///< of each place
    std::unique_ptr<ThreadPool> workers_; ///< ends first
};

/// Contents of a snapshot on their way to host memory.
class MemorySink final : public store::ChunkSink {
public:
    /// `memory` says where each extent goes; only those that are read are used. All outlive it.
    MemorySink(const std::vector<std::byte*>& memory, const MakeReady& make_ready,
               ProgressCounter& progress) noexcept
        : memory_(memory), make_ready_(make_ready), progress_(progress) {}

    [[nodiscard]] Result<std::span<std::byte>> space(const store::ChunkPlace& place) override;
    [[nodiscard]] Result<void> deliver(const store::ChunkPlace& place,
                                       std::span<const std::byte> content) override;

private:
    const std::vector<std::byte*>& memory_;
    const MakeReady& make_ready_;
    ProgressCounter& progress_;
};

} // namespace gpu_sleep::contents
