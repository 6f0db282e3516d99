// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Coding chunks on all cores, apart from where they are kept: contents are pulled, encoded and put; or got,
// decoded and delivered.

#pragma once

#include "codec/chunk.hpp"
#include "store/snapshot.hpp"

#include <atomic>

namespace gpu_sleep::store {

/// A chunk as it is kept: coded, or as it is where that makes it no smaller.
struct CodedChunk {
    codec::Shape shape;
    std::uint32_t used_bytes = 0;
    std::uint64_t checksum = 0;       ///< XXH64 of `bytes`
    std::span<const std::byte> bytes; ///< those used, and zeros up to a multiple of k_alignment
};

/// Called once when a chunk is there, or has failed, on any thread. Must not throw, though memory run out.
using ChunkDone = std::function<void(Result<void>)>;
/// Keeps a chunk, whose bytes stay until `done`. Called on several threads. Where it waits, it gives up once
/// `has_failed`: another chunk. After an error, or where it throws for want of memory, `done` is not called.
using PutChunk = std::function<Result<void>(const ChunkPlace&, const CodedChunk&, ChunkDone done,
                                            const std::atomic<bool>& has_failed)>;
/// Brings a chunk to `to`, k_chunk_bytes from a page on. `done` and errors: likewise.
using GetChunk = std::function<Result<void>(const ChunkPlace&, std::byte* to,
                                            std::function<void(Result<CodedChunk>)> done)>;

/// Where contents come from.
class ChunkSource {
public:
    virtual ~ChunkSource() = default;
    /// Waits for the contents of `place`. Called for every chunk in order, on the thread of encode_all(); at
    /// most as many are out as there are chunks under way (CodingOptions). Errors: any; all is given up.
    /// Where they begin at a page, contents that do not compress are put without a copy.
    [[nodiscard]] virtual Result<std::span<const std::byte>> take(const ChunkPlace& place) = 0;
    /// Looks at what take() gave, on the thread that encodes it, and returns it; in `buffer`, where it has to
    /// be put together. Errors: any; all is given up.
    [[nodiscard]] virtual Result<std::span<const std::byte>>
    look_at(const ChunkPlace& /*place*/, std::span<const std::byte> taken,
            std::vector<std::byte>& /*buffer*/) const {
        return taken;
    }
    /// What look_at() takes of memory at most, for each thread that calls it.
    [[nodiscard]] virtual Bytes look_bytes() const noexcept { return 0; }
    /// The contents are no longer needed. Called once for each that was taken, from any thread, also after a
    /// failure.
    virtual void release(const ChunkPlace& place) noexcept = 0;
};

/// Where contents go.
class ChunkSink {
public:
    virtual ~ChunkSink() = default;
    /// Memory for the contents of `place`. Called in order, on the thread of decode_all(), for at most as
    /// many chunks as are under way before the first of them is delivered. Errors: any; reading ends.
    [[nodiscard]] virtual Result<std::span<std::byte>> space(const ChunkPlace& place) = 0;
    /// The contents of `place`, checked, are where space() said. Called in order, on the same thread. Errors:
    /// any; reading ends.
    [[nodiscard]] virtual Result<void> deliver(const ChunkPlace& place,
                                               std::span<const std::byte> content) = 0;
};

struct CodingOptions {
    unsigned threads = 0;             ///< 0 for one per processor
    std::size_t under_way = 0;        ///< chunks taken and not yet there; 0 for three per thread
    Bytes buffer_bytes = 512 * k_mib; ///< bound for all buffers; lowers the two above
};

/// Encodes what `source` has of `places`, in order, and puts it; all `done` were called when it returns.
/// Errors: out_of_host_memory, those of the source and of `put`.
[[nodiscard]] Result<void> encode_all(std::span<const ChunkPlace> places, ChunkSource& source,
                                      const PutChunk& put, const CodingOptions& options);

/// Gets and decodes `places`, which are of `extents`, and delivers them in order; nothing is under way when
/// it returns. Errors: damaged (no chunk that is was delivered), out_of_host_memory, those of the sink and of
/// `get`.
[[nodiscard]] Result<void> decode_all(std::span<const ChunkPlace> places,
                                      const std::vector<SnapshotExtent>& extents, ChunkSink& sink,
                                      const GetChunk& get, const CodingOptions& options);

} // namespace gpu_sleep::store
