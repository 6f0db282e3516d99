// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One thread takes contents, workers encode them, the queue writes them wherever the file ends just then.

#include "store/snapshot_writer.hpp"

#include "base/checksum.hpp"
#include "base/guard.hpp"
#include "base/threads.hpp"
#include "store/io_queue.hpp"
#include "store/own_file.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace gpu_sleep::store {
namespace {

/// Disk space is allocated for a quarter of what is left at a time, and no less than this: each time waits
/// for the writes under way.
constexpr Bytes k_min_reserve_bytes = 256 * k_mib;

class SnapshotWriter {
public:
    /// `claims` is null for a file that does not lie in host memory.
    SnapshotWriter(SnapshotFile& file, SnapshotHeader& header, ChunkSource& source, IoQueue& queue,
                   BufferPool& pool, HostClaims* claims)
        : file_(file), header_(header), source_(source), queue_(queue), pool_(pool), claims_(claims),
          places_(places_of(header.description.extents)), left_(max_file_bytes(header.description)),
          end_(header.header_bytes) {
        header_.rows.resize(places_.size());
        left_ -= header.header_bytes;
    }

    [[nodiscard]] Result<void> write(unsigned threads) {
        auto workers = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-pack", threads));
        encoders_.resize(workers->count());
        for (const auto& place : places_) {
            if (has_failed_) break;
            under_way_ += room_of(place);
            left_ -= room_of(place);
            reserve_ahead();
            start(*workers, place);
        }
        pool_.wait_for_all();
        const std::lock_guard lock(mutex_);
        if (failure_ && failure_->driver_status == EFBIG)
            return Error{ErrorCode::out_of_disk,
                         "cannot write the snapshot: the file would be too long (RLIMIT_FSIZE)",
                         {},
                         EFBIG};
        if (failure_) return *std::move(failure_);
        header_.file_bytes = end_;
        return {};
    }

    /// What the file takes of host memory when it grows by `bytes`: nothing where it does not lie there.
    [[nodiscard]] Result<std::shared_ptr<const HostClaim>> claim(Bytes bytes) {
        std::shared_ptr<const HostClaim> held;
        if (claims_ == nullptr) return held;
        const auto needed = [this, bytes] {
            return "at most " + format_bytes(max_file_bytes(header_.description) - end_ + bytes);
        };
        auto made = GPU_SLEEP_TRY(claims_->make(bytes, needed, [this](Milliseconds time) {
            if (!has_failed_) std::this_thread::sleep_for(time);
            return has_failed_.load();
        }));
        held = std::make_shared<const HostClaim>(std::move(made));
        return held;
    }

private:
    /// That a chunk takes at most.
    [[nodiscard]] static Bytes room_of(const ChunkPlace& place) noexcept {
        return round_up(place.bytes, k_alignment);
    }

    /// Allocates space for what is under way and a step more, never for all: others need the same disk, and
    /// most of it would be given back. Where there is none, the rest may still fit once it is smaller.
    void reserve_ahead() noexcept {
        const auto under_way = under_way_.load(); // before end_: a chunk may count twice, but not be missed
        const auto end = end_ + under_way;
        if (!reserves_ || end <= reserved_) return;
        const auto wanted = end + std::min(left_, std::max(k_min_reserve_bytes, left_ / 4));
        reserves_ = file_.reserve(reserved_, wanted);
        reserved_ = wanted;
    }

    void start(ThreadPool& workers, const ChunkPlace& place) noexcept {
        auto* const buffer = pool_.take();
        bool is_taken = false;
        auto posted = guarded([&]() -> Result<void> {
            auto content = GPU_SLEEP_TRY(source_.take(place));
            is_taken = true;
            if (content.size() != place.bytes)
                return make_error(ErrorCode::internal, "contents of the wrong size");
            workers.post(
                [=, this, content = content](std::size_t worker) { pack(worker, place, content, buffer); });
            return {};
        });
        if (posted) return;
        if (is_taken) source_.release(place);
        finish(std::move(posted), buffer);
    }

    void pack(std::size_t worker, const ChunkPlace& place, std::span<const std::byte> content,
              std::byte* buffer) noexcept {
        auto packed = guarded([&]() -> Result<codec::ChunkEncoder::Encoded> {
            if (has_failed_) return make_error(ErrorCode::cancelled, "writing the snapshot was given up");
            return encoders_[worker].encode(content, {buffer, codec::ChunkEncoder::bound(content.size())});
        });
        if (!packed) {
            source_.release(place);
            return finish(std::move(packed).error(), buffer);
        }
        auto& row = header_.rows[place.number]; // nobody else's
        row.shape = packed->shape;
        row.content_bytes = static_cast<std::uint32_t>(content.size());
        row.used_bytes =
            packed->shape.width == 0 ? row.content_bytes : static_cast<std::uint32_t>(packed->bytes);
        row.stored_bytes = static_cast<std::uint32_t>(round_up(row.used_bytes, k_alignment));
        const bool in_place = packed->shape.width == 0 && row.used_bytes == row.stored_bytes &&
                              reinterpret_cast<std::uintptr_t>(content.data()) % k_alignment == 0;
        if (!in_place) {
            if (packed->shape.width == 0) std::memcpy(buffer, content.data(), content.size());
            std::memset(buffer + row.used_bytes, 0, row.stored_bytes - row.used_bytes);
            source_.release(place);
        }
        // Only ever read from: IoRequest serves both directions.
        auto* const data = in_place ? const_cast<std::byte*>(content.data()) : buffer;
        row.checksum = xxh64({data, row.stored_bytes});
        row.offset = end_.fetch_add(row.stored_bytes);
        under_way_ -= room_of(place);
        const auto done = [=, this](Result<void> written) {
            if (in_place) source_.release(place);
            finish(std::move(written), buffer);
        };
        auto submitted = guarded([&]() -> Result<void> {
            auto claim = GPU_SLEEP_TRY(this->claim(row.stored_bytes));
            GPU_SLEEP_TRY(file_.check_held());
            queue_.submit({IoRequest::Kind::write, file_.fd(), data, row.stored_bytes, row.offset,
                           [done, held = std::move(claim)](Result<void> written) mutable {
                               held.reset();
                               done(std::move(written));
                           }});
            return {};
        });
        if (!submitted) done(std::move(submitted));
    }

    void finish(Result<void> result, std::byte* buffer) noexcept {
        if (!result) fail(std::move(result).error());
        pool_.put(buffer); // last: the writer may go now
    }

    void fail(Error error) noexcept {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::move(error);
        has_failed_ = true;
    }

    SnapshotFile& file_;
    SnapshotHeader& header_;
    ChunkSource& source_;
    IoQueue& queue_;
    BufferPool& pool_;
    HostClaims* claims_;
    const std::vector<ChunkPlace> places_;
    Bytes left_;           ///< that the chunks not yet started take at most
    Bytes reserved_ = 0;   ///< of the file; nothing is written behind it as long as space is reserved
    bool reserves_ = true; ///< until there was too little space
    std::atomic<Bytes> under_way_{0}; ///< that chunks take at most which have no place in the file yet
    std::vector<codec::ChunkEncoder> encoders_; ///< one for each worker
    std::atomic<Bytes> end_;                    ///< of what was given a place in the file
    std::atomic<bool> has_failed_{false};
    std::mutex mutex_; ///< guards failure_
    std::optional<Error> failure_;
};

Result<void> write_header(int fd, const SnapshotHeader& header, BufferPool& pool) {
    const auto bytes = encode_header(header);
    auto* const buffer = pool.take();
    Result<void> result;
    for (std::size_t at = 0; at < bytes.size() && result; at += codec::k_chunk_bytes) {
        const auto part = std::min<std::size_t>(codec::k_chunk_bytes, bytes.size() - at);
        std::memcpy(buffer, &bytes[at], part);
        result = move_bytes(IoRequest::Kind::write, fd, buffer, part, at);
    }
    pool.put(buffer);
    return result;
}

/// Throws where memory runs out.
Result<Snapshot> write_unguarded(std::shared_ptr<const SnapshotDirectory> directory,
                                 SnapshotDescription description, ChunkSource& source,
                                 const SnapshotWriteOptions& options) {
    description.id = GPU_SLEEP_TRY(make_snapshot_id());
    description.created = utc_now();
    auto file = GPU_SLEEP_TRY(SnapshotFile::create(std::move(directory), description.owner, options.direct));
    SnapshotHeader header;
    header.header_bytes = header_bytes_of(description);
    if (header.header_bytes > k_max_header_bytes)
        return make_error(ErrorCode::io_failed, "{} ranges and spans are too many for one snapshot",
                          description.extents.size());
    header.description = std::move(description);

    const auto bound = codec::ChunkEncoder::bound(codec::k_chunk_bytes);
    const auto each = bound + codec::ChunkEncoder::held_bytes();
    const auto most = std::max<std::size_t>(1, static_cast<std::size_t>(options.buffer_bytes / each));
    auto threads = options.threads > 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
    threads = static_cast<unsigned>(std::min<std::size_t>(threads, most));
    const auto buffers = std::min(options.under_way > 0 ? options.under_way : std::size_t{3} * threads, most);
    auto pool = GPU_SLEEP_TRY(BufferPool::create(buffers, bound));
    const auto own_queue = GPU_SLEEP_TRY(
        options.queue != nullptr
            ? Result<std::unique_ptr<IoQueue>>(nullptr)
            : open_io_queue(options.io, uses_direct_io(file.fd()) ? IoUse::direct : IoUse::cached_writes));
    auto& queue = options.queue != nullptr ? *options.queue : *own_queue;
    std::optional<HostClaims> claims;
    if (lies_in_memory(file.fd())) claims.emplace(options.memory);
    SnapshotWriter writer(file, header, source, queue, *pool, claims ? &*claims : nullptr);
    GPU_SLEEP_TRY(writer.write(threads));
    options.flushing(true);
    GPU_SLEEP_TRY(file.cut(header.file_bytes));
    {
        const auto claim = GPU_SLEEP_TRY(writer.claim(header.header_bytes));
        GPU_SLEEP_TRY(write_header(file.fd(), header, *pool));
    }
    GPU_SLEEP_TRY(file.commit());
    options.flushing(false);
    return Snapshot{std::move(file), std::move(header)};
}

} // namespace

Result<Snapshot> write_snapshot(std::shared_ptr<const SnapshotDirectory> directory,
                                SnapshotDescription description, ChunkSource& source,
                                const SnapshotWriteOptions& options) {
    return guarded(
        [&] { return write_unguarded(std::move(directory), std::move(description), source, options); });
}

} // namespace gpu_sleep::store
