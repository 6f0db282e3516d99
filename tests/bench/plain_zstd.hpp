// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What gpu-sleep's own format is measured against: independent frames of zstd -1 in a file, by the library,
// on as many threads.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace gpu_sleep::bench {

/// A file of zstd frames, one for each time that `chunk` comes in it.
class PlainZstd {
public:
    /// `fd` is an empty file, open to be read and written, which stays its owner's.
    PlainZstd(int fd, std::span<const std::byte> chunk, unsigned threads) noexcept
        : fd_(fd), chunk_(chunk), threads_(threads) {}

    /// Compresses `count` chunks, each anew, writes and flushes them. Errors: io_failed.
    [[nodiscard]] Result<void> write(std::size_t count);
    /// Reads them and decompresses them. Errors: io_failed.
    [[nodiscard]] Result<void> read() const;
    [[nodiscard]] Bytes stored() const noexcept { return stored_; }

private:
    struct Frame {
        Bytes offset = 0;
        std::size_t bytes = 0;
    };

    int fd_;
    std::span<const std::byte> chunk_;
    unsigned threads_;
    Bytes stored_ = 0;
    std::vector<Frame> frames_;
};

} // namespace gpu_sleep::bench
