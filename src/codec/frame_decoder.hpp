// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading frames (frame.hpp).

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "codec/code_lengths.hpp"
#include "codec/frame.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace gpu_sleep::codec {

class StreamDecoder;

/// Reads one frame. Never reads or writes outside of what it is given, whatever that holds. The frame must
/// outlive it. Once open, decoding is thread-safe.
class FrameDecoder {
public:
    /// Finds the blocks by walking over the frame's own headers, and reads its tree. Errors: damaged (not a
    /// whole frame of the profile). Source: RFC 8878, 3.1.1.
    [[nodiscard]] static Result<FrameDecoder> open(std::span<const std::byte> frame);

    FrameDecoder(FrameDecoder&&) noexcept;
    FrameDecoder& operator=(FrameDecoder&&) noexcept;
    ~FrameDecoder();

    [[nodiscard]] Bytes content_bytes() const noexcept { return content_bytes_; }
    [[nodiscard]] const std::vector<BlockEntry>& blocks() const noexcept { return blocks_; }
    /// The code of all coded blocks; no lengths if there are none.
    [[nodiscard]] const CodeLengths& code_lengths() const noexcept { return lengths_; }

    /// Decodes a block into `out`, which has just its size. Errors: damaged; `out` is then undefined.
    [[nodiscard]] Result<void> decode_block(std::size_t index, std::span<std::byte> out) const;
    /// Decodes all blocks. `out` has content_bytes(). Errors: damaged; `out` is then undefined.
    [[nodiscard]] Result<void> decode(std::span<std::byte> out) const;

private:
    explicit FrameDecoder(std::span<const std::byte> frame) noexcept;

    std::span<const std::byte> frame_;
    Bytes content_bytes_ = 0;
    std::vector<BlockEntry> blocks_;
    CodeLengths lengths_{};
    std::unique_ptr<StreamDecoder> decoder_; ///< null without a coded block
};

} // namespace gpu_sleep::codec
