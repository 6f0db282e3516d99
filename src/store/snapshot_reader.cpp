// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The queue reads, workers check and decode, one thread hands out space and delivers.

#include "store/snapshot_reader.hpp"

#include "base/checksum.hpp"
#include "base/guard.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "store/io_queue.hpp"
#include "store/snapshot_directory.hpp"
#include "store/snapshot_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace gpu_sleep::store {
namespace {

/// One call of SnapshotReader::read().
class Reading {
public:
    Reading(int fd, const SnapshotFile* file, const SnapshotHeader& header, ChunkSink& sink, IoQueue& queue,
            BufferPool& pool)
        : fd_(fd), file_(file), header_(header), sink_(sink), queue_(queue), pool_(pool) {}

    [[nodiscard]] Result<void> run(const std::vector<ChunkPlace>& places, unsigned threads,
                                   std::size_t ahead) {
        auto workers = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-load", threads));
        workers_ = workers.get();
        decoders_.resize(workers_->count());
        auto result = guarded([&] { return stream(places, ahead); });
        stopped_ = true;
        pool_.wait_for_all(); // nothing may still write to the sink's memory
        return result;
    }

private:
    /// A chunk on its way.
    struct Chunk {
        ChunkPlace place;
        std::span<std::byte> content;
        std::optional<Result<void>> result; ///< once it is there; guarded by mutex_
    };

    [[nodiscard]] Result<void> stream(const std::vector<ChunkPlace>& places, std::size_t ahead) {
        std::size_t next = 0;
        while (next < places.size() || !chunks_.empty()) {
            for (; next < places.size() && chunks_.size() < ahead; ++next) GPU_SLEEP_TRY(start(places[next]));
            auto& first = chunks_.front();
            {
                std::unique_lock lock(mutex_);
                changed_.wait(lock, [&] { return first.result.has_value(); });
            }
            GPU_SLEEP_TRY(*first.result);
            GPU_SLEEP_TRY(sink_.deliver(first.place, first.content));
            chunks_.pop_front();
        }
        return {};
    }

    [[nodiscard]] Result<void> start(const ChunkPlace& place) {
        const auto space = GPU_SLEEP_TRY(sink_.space(place));
        if (space.size() != place.bytes) return make_error(ErrorCode::internal, "space of the wrong size");
        auto& chunk = chunks_.emplace_back(Chunk{place, space, {}}); // a deque's elements stay where they are
        const auto& row = header_.rows[place.number];
        auto* const buffer = pool_.take();
        auto submitted = guarded([&]() -> Result<void> {
            if (file_ != nullptr) GPU_SLEEP_TRY(file_->check_held());
            queue_.submit(
                {IoRequest::Kind::read, fd_, buffer, row.stored_bytes, row.offset,
                 [=, this, &chunk](Result<void> read) { hand_over(chunk, std::move(read), buffer); }});
            return {};
        });
        if (!submitted) finish(chunk, std::move(submitted), buffer);
        return {};
    }

    /// To a worker. Runs on a thread of the queue, which nothing may be thrown at.
    void hand_over(Chunk& chunk, Result<void> read, std::byte* buffer) noexcept {
        if (read)
            read = guarded([&]() -> Result<void> {
                workers_->post([=, this, &chunk](std::size_t worker) {
                    finish(chunk, guarded([&] { return unpack(worker, chunk, buffer); }), buffer);
                });
                return {};
            });
        if (!read) finish(chunk, std::move(read), buffer);
    }

    [[nodiscard]] Result<void> unpack(std::size_t worker, const Chunk& chunk, const std::byte* buffer) {
        if (stopped_) return make_error(ErrorCode::cancelled, "reading has ended");
        const auto& row = header_.rows[chunk.place.number];
        if (xxh64({buffer, row.stored_bytes}) != row.checksum)
            return make_error(ErrorCode::damaged,
                              "the snapshot is damaged: the checksum of chunk {} ({:#x} of tag {}) is wrong",
                              chunk.place.number,
                              header_.description.extents[chunk.place.extent].address + chunk.place.offset,
                              header_.description.extents[chunk.place.extent].tag);
        if (row.shape.width == 0) {
            std::memcpy(chunk.content.data(), buffer, row.used_bytes);
            return {};
        }
        return decoders_[worker].decode(row.shape, {buffer, row.used_bytes}, chunk.content);
    }

    void finish(Chunk& chunk, Result<void> result, std::byte* buffer) {
        {
            // Notified with the lock held: the chunk may go as soon as its result is seen.
            const std::lock_guard lock(mutex_);
            chunk.result = std::move(result);
            changed_.notify_all();
        }
        pool_.put(buffer); // last: the reading may go now
    }

    const int fd_;
    const SnapshotFile* const file_; ///< whose descriptor that is; null if it is nobody's else
    const SnapshotHeader& header_;
    ChunkSink& sink_;
    IoQueue& queue_;
    BufferPool& pool_;
    ThreadPool* workers_ = nullptr;
    std::vector<codec::ChunkDecoder> decoders_; ///< one for each worker
    std::atomic<bool> stopped_{false};
    std::deque<Chunk> chunks_; ///< the thread of run() alone adds and removes
    std::mutex mutex_;         ///< guards their results
    std::condition_variable changed_;
};

/// The front of an open file, which may pass by the page cache: what is read from it goes to whole pages.
class Front {
public:
    /// Errors: damaged (the file is shorter), io_failed, out_of_host_memory.
    [[nodiscard]] static Result<Front> read(int fd, Bytes bytes) {
        auto memory = GPU_SLEEP_TRY(BufferPool::create(1, static_cast<std::size_t>(bytes)));
        auto* const data = memory->take();
        GPU_SLEEP_TRY(move_bytes(IoRequest::Kind::read, fd, data, static_cast<std::size_t>(bytes), 0));
        return Front(std::move(memory), {data, static_cast<std::size_t>(bytes)});
    }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

private:
    Front(std::unique_ptr<BufferPool> memory, std::span<const std::byte> bytes)
        : memory_(std::move(memory)), bytes_(bytes) {}

    std::unique_ptr<BufferPool> memory_;
    std::span<const std::byte> bytes_;
};

Result<Bytes> size_of(int fd) {
    struct stat status = {};
    if (::fstat(fd, &status) != 0)
        return errno_error(ErrorCode::io_failed, errno, "fstat", "cannot read the snapshot");
    const auto bytes = static_cast<Bytes>(status.st_size);
    if (bytes < k_alignment)
        return make_error(ErrorCode::damaged, "the snapshot is truncated: it has {}", counted(bytes, "byte"));
    return bytes;
}

Result<SnapshotHeader> read_header(int fd) {
    const auto file_bytes = GPU_SLEEP_TRY(size_of(fd));
    const auto page = GPU_SLEEP_TRY(Front::read(fd, k_alignment));
    const auto bytes = GPU_SLEEP_TRY(read_preamble(page.bytes().first<k_preamble_bytes>(), file_bytes));
    const auto header = GPU_SLEEP_TRY(Front::read(fd, bytes));
    return decode_header(header.bytes(), file_bytes);
}

/// Errors: damaged, io_failed, out_of_host_memory.
Result<void> compare_header(int fd, const SnapshotHeader& written) {
    const auto file_bytes = GPU_SLEEP_TRY(size_of(fd));
    if (file_bytes != written.file_bytes)
        return make_error(ErrorCode::damaged, "the snapshot is damaged: it has {} of {}",
                          counted(file_bytes, "byte"), written.file_bytes);
    const auto front = GPU_SLEEP_TRY(Front::read(fd, written.header_bytes));
    const auto header = encode_header(written);
    if (!std::equal(header.begin(), header.end(), front.bytes().begin(), front.bytes().end()))
        return make_error(ErrorCode::damaged,
                          "the snapshot is damaged: its header was changed or overwritten");
    return {};
}

Result<std::vector<ChunkPlace>> places_to_read(const SnapshotHeader& header,
                                               const std::vector<std::size_t>& extents) {
    auto places = places_of(header.description.extents);
    for (const auto extent : extents)
        if (extent >= header.description.extents.size())
            return make_error(ErrorCode::invalid_argument, "the snapshot has no extent {}", extent);
    if (extents.empty()) return places;
    std::vector<bool> is_wanted(header.description.extents.size());
    for (const auto extent : extents) is_wanted[extent] = true;
    std::erase_if(places, [&](const ChunkPlace& place) { return !is_wanted[place.extent]; });
    return places;
}

} // namespace

SnapshotReader::SnapshotReader(const SnapshotFile& file, SnapshotHeader header)
    : fd_(file.fd()), file_(&file), header_(std::move(header)) {}

Result<SnapshotReader> SnapshotReader::open(const std::filesystem::path& path) {
    auto fd = GPU_SLEEP_TRY(open_snapshot(path));
    return open(std::move(fd));
}

Result<SnapshotReader> SnapshotReader::open(UniqueFd fd) {
    use_direct_io(fd.get()); // nobody reads it twice
    auto header = GPU_SLEEP_TRY(guarded([&] { return read_header(fd.get()); }));
    const int number = fd.get();
    return SnapshotReader(std::move(fd), number, std::move(header));
}

Result<SnapshotReader> SnapshotReader::open(const SnapshotFile& file, const SnapshotHeader& written) {
    return guarded([&]() -> Result<SnapshotReader> {
        GPU_SLEEP_TRY(file.check_held());
        GPU_SLEEP_TRY(compare_header(file.fd(), written));
        return SnapshotReader(file, written);
    });
}

Result<void> SnapshotReader::read(ChunkSink& sink, const SnapshotReadOptions& options) const {
    return guarded([&] { return read_unguarded(sink, options); });
}

Result<void> SnapshotReader::read_unguarded(ChunkSink& sink, const SnapshotReadOptions& options) const {
    const auto places = GPU_SLEEP_TRY(places_to_read(header_, options.extents));
    const auto each = codec::k_chunk_bytes + codec::ChunkDecoder::held_bytes();
    const auto most = std::max<std::size_t>(1, static_cast<std::size_t>(options.buffer_bytes / each));
    auto threads = options.threads > 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
    threads = static_cast<unsigned>(std::min<std::size_t>(threads, most));
    const auto ahead = std::min(options.ahead > 0 ? options.ahead : std::size_t{3} * threads, most);
    auto pool = GPU_SLEEP_TRY(BufferPool::create(ahead, static_cast<std::size_t>(codec::k_chunk_bytes)));
    const auto own_queue = GPU_SLEEP_TRY(
        options.queue != nullptr
            ? Result<std::unique_ptr<IoQueue>>(nullptr)
            : open_io_queue(options.io, uses_direct_io(fd_) ? IoUse::direct : IoUse::cached_reads));
    auto& queue = options.queue != nullptr ? *options.queue : *own_queue;
    return Reading(fd_, file_, header_, sink, queue, *pool).run(places, threads, ahead);
}

} // namespace gpu_sleep::store
