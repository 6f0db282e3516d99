// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frames of zstd -1 in a file.

#include "bench/plain_zstd.hpp"

#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

namespace gpu_sleep::bench {
namespace {

using Compressor = std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)>;
using Decompressor = std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)>;

/// Runs `body`, which says whether all went well, on each of `threads`.
template <class Body>
Result<void> on_threads(unsigned threads, Body&& body) {
    std::atomic<bool> fine = true;
    {
        std::vector<std::jthread> all;
        for (unsigned i = 0; i < threads; ++i)
            all.emplace_back([&] {
                if (!body()) fine = false;
            });
    }
    if (!fine) return make_error(ErrorCode::io_failed, "plain zstd failed");
    return {};
}

} // namespace

Result<void> PlainZstd::write(std::size_t count) {
    frames_.assign(count, {});
    std::atomic<std::size_t> next = 0;
    std::atomic<Bytes> end = 0;
    GPU_SLEEP_TRY(on_threads(threads_, [&] {
        const Compressor compressor(ZSTD_createCCtx(), &ZSTD_freeCCtx);
        std::vector<std::byte> out(ZSTD_compressBound(chunk_.size()));
        for (std::size_t i = next++; i < count; i = next++) {
            const auto bytes =
                ZSTD_compressCCtx(compressor.get(), out.data(), out.size(), chunk_.data(), chunk_.size(), 1);
            if (ZSTD_isError(bytes) != 0) return false;
            frames_[i] = {end.fetch_add(bytes), bytes};
            if (::pwrite(fd_, out.data(), bytes, static_cast<off_t>(frames_[i].offset)) !=
                static_cast<ssize_t>(bytes))
                return false;
        }
        return true;
    }));
    stored_ = end;
    if (::fsync(fd_) != 0) return make_error(ErrorCode::io_failed, "cannot flush plain zstd");
    return {};
}

Result<void> PlainZstd::read() const {
    std::atomic<std::size_t> next = 0;
    return on_threads(threads_, [&] {
        const Decompressor decompressor(ZSTD_createDCtx(), &ZSTD_freeDCtx);
        std::vector<std::byte> in(ZSTD_compressBound(chunk_.size()));
        std::vector<std::byte> out(chunk_.size());
        for (std::size_t i = next++; i < frames_.size(); i = next++) {
            const auto [offset, bytes] = frames_[i];
            if (::pread(fd_, in.data(), bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes))
                return false;
            if (ZSTD_decompressDCtx(decompressor.get(), out.data(), out.size(), in.data(), bytes) !=
                    out.size() ||
                !std::equal(out.begin(), out.end(), chunk_.begin()))
                return false;
        }
        return true;
    });
}

} // namespace gpu_sleep::bench
