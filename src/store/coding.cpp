// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One thread takes or delivers, workers encode or decode, whoever keeps chunks moves them.

#include "store/coding.hpp"

#include "base/checksum.hpp"
#include "base/guard.hpp"
#include "base/threads.hpp"
#include "store/io_queue.hpp"

#include <cstring>

namespace gpu_sleep::store {
namespace {

/// What CodingOptions come to where each chunk under way takes a buffer of `buffer`, and a thread `state`.
struct Means {
    Means(const CodingOptions& options, Bytes buffer, Bytes state) {
        const auto most = std::max<std::size_t>(1, options.buffer_bytes / (buffer + state));
        const auto all = options.threads > 0 ? options.threads : std::thread::hardware_concurrency();
        threads = static_cast<unsigned>(std::min<std::size_t>(std::max(1U, all), most));
        under_way = std::min(options.under_way > 0 ? options.under_way : std::size_t{3} * threads, most);
    }
    unsigned threads = 1;
    std::size_t under_way = 1;
};

/// One call of encode_all().
class Encoding {
public:
    Encoding(ChunkSource& source, const PutChunk& put, BufferPool& pool)
        : source_(source), put_(put), pool_(pool) {}

    [[nodiscard]] Result<void> run(std::span<const ChunkPlace> places, unsigned threads) {
        auto workers = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-pack", threads));
        workers_.resize(workers->count());
        for (const auto& place : places) {
            if (failure_.has_failed()) break;
            start(*workers, place);
        }
        pool_.wait_for_all();
        return failure_.result();
    }

private:
    struct Worker {
        codec::ChunkEncoder encoder;
        std::vector<std::byte> gathered;
    };

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

    void pack(std::size_t worker, const ChunkPlace& place, std::span<const std::byte> taken,
              std::byte* buffer) noexcept {
        bool is_held = true; // by the source
        auto given = guarded([&]() -> Result<void> {
            const auto chunk = GPU_SLEEP_TRY(encode(workers_[worker], place, taken, buffer));
            const bool in_place = chunk.bytes.data() != buffer;
            if (!in_place) {
                source_.release(place);
                is_held = false;
            }
            const auto put = [=, this](Result<void> done) {
                if (in_place) source_.release(place);
                finish(std::move(done), buffer);
            };
            return put_(place, chunk, put, failure_.has_failed());
        });
        if (given) return;
        if (is_held) source_.release(place);
        finish(std::move(given), buffer);
    }

    /// In `buffer`, or where it was taken from.
    [[nodiscard]] Result<CodedChunk> encode(Worker& worker, const ChunkPlace& place,
                                            std::span<const std::byte> taken, std::byte* buffer) {
        if (failure_.has_failed()) return make_error(ErrorCode::cancelled, "writing was given up");
        const auto content = GPU_SLEEP_TRY(source_.look_at(place, taken, worker.gathered));
        const auto packed = GPU_SLEEP_TRY(
            worker.encoder.encode(content, {buffer, codec::ChunkEncoder::bound(content.size())}));
        const bool is_raw = packed.shape.width == 0;
        const auto used = is_raw ? content.size() : packed.bytes;
        const auto stored = static_cast<std::size_t>(round_up(used, k_alignment));
        const bool in_place = is_raw && used == stored && content.data() == taken.data() &&
                              reinterpret_cast<std::uintptr_t>(content.data()) % k_alignment == 0;
        if (is_raw && !in_place) std::memcpy(buffer, content.data(), used);
        if (!in_place) std::memset(buffer + used, 0, stored - used);
        const std::span<const std::byte> bytes(in_place ? content.data() : buffer, stored);
        return CodedChunk{packed.shape, static_cast<std::uint32_t>(used), xxh64(bytes), bytes};
    }

    void finish(Result<void> result, std::byte* buffer) noexcept {
        if (!result) failure_.note(std::move(result).error());
        pool_.put(buffer); // last: the encoding may go now
    }

    ChunkSource& source_;
    const PutChunk& put_;
    BufferPool& pool_;
    std::vector<Worker> workers_; ///< state of each thread
    FirstFailure failure_;
};

/// One call of decode_all().
class Decoding {
public:
    Decoding(const std::vector<SnapshotExtent>& extents, ChunkSink& sink, const GetChunk& get,
             BufferPool& pool)
        : extents_(extents), sink_(sink), get_(get), pool_(pool) {}

    [[nodiscard]] Result<void> run(std::span<const ChunkPlace> places, const Means& means) {
        auto workers = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-load", means.threads));
        workers_ = workers.get();
        decoders_.resize(workers_->count());
        auto result = guarded([&] { return stream(places, means.under_way); });
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

    [[nodiscard]] Result<void> stream(std::span<const ChunkPlace> places, std::size_t ahead) {
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
        auto* const buffer = pool_.take();
        auto asked = guarded([&] {
            return get_(place, buffer, [=, this, &chunk](Result<CodedChunk> coded) {
                hand_over(chunk, std::move(coded), buffer);
            });
        });
        if (!asked) finish(chunk, std::move(asked), buffer);
        return {};
    }

    /// To a worker. Runs on a thread of whoever got it, which nothing may be thrown at.
    void hand_over(Chunk& chunk, Result<CodedChunk> coded, std::byte* buffer) noexcept {
        auto posted = guarded([&]() -> Result<void> {
            if (!coded) return std::move(coded).error();
            workers_->post([=, this, &chunk, coded = *coded](std::size_t worker) {
                finish(chunk, guarded([&] { return unpack(worker, chunk, coded); }), buffer);
            });
            return {};
        });
        if (!posted) finish(chunk, std::move(posted), buffer);
    }

    [[nodiscard]] Result<void> unpack(std::size_t worker, const Chunk& chunk, const CodedChunk& coded) {
        if (stopped_) return make_error(ErrorCode::cancelled, "reading has ended");
        const auto& extent = extents_[chunk.place.extent];
        if (xxh64(coded.bytes) != coded.checksum)
            return make_error(ErrorCode::damaged,
                              "the snapshot is damaged: the checksum of chunk {} ({:#x} of tag {}) is wrong",
                              chunk.place.number, extent.address + chunk.place.offset, extent.tag);
        const auto used = coded.bytes.first(coded.used_bytes);
        if (coded.shape.width != 0) return decoders_[worker].decode(coded.shape, used, chunk.content);
        std::memcpy(chunk.content.data(), used.data(), used.size());
        return {};
    }

    void finish(Chunk& chunk, Result<void> result, std::byte* buffer) {
        {
            // Notified with the lock held: the chunk may go as soon as its result is seen.
            const std::lock_guard lock(mutex_);
            chunk.result = std::move(result);
            changed_.notify_all();
        }
        pool_.put(buffer); // last: the decoding may go now
    }

    const std::vector<SnapshotExtent>& extents_;
    ChunkSink& sink_;
    const GetChunk& get_;
    BufferPool& pool_;
    ThreadPool* workers_ = nullptr;
    std::vector<codec::ChunkDecoder> decoders_; ///< one for each worker
    std::atomic<bool> stopped_{false};
    std::deque<Chunk> chunks_; ///< the thread of run() alone adds and removes
    std::mutex mutex_;         ///< guards their results
    std::condition_variable changed_;
};

} // namespace

Result<void> encode_all(std::span<const ChunkPlace> places, ChunkSource& source, const PutChunk& put,
                        const CodingOptions& options) {
    const auto bound = codec::ChunkEncoder::bound(codec::k_chunk_bytes);
    const Means means(options, bound, codec::ChunkEncoder::held_bytes() + source.look_bytes());
    const auto pool = GPU_SLEEP_TRY(BufferPool::create(means.under_way, bound));
    return Encoding(source, put, *pool).run(places, means.threads);
}

Result<void> decode_all(std::span<const ChunkPlace> places, const std::vector<SnapshotExtent>& extents,
                        ChunkSink& sink, const GetChunk& get, const CodingOptions& options) {
    const Means means(options, codec::k_chunk_bytes, codec::ChunkDecoder::held_bytes());
    const auto pool =
        GPU_SLEEP_TRY(BufferPool::create(means.under_way, static_cast<std::size_t>(codec::k_chunk_bytes)));
    return Decoding(extents, sink, get, *pool).run(places, means);
}

} // namespace gpu_sleep::store
