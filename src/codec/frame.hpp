// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// zstd frames of one fixed profile (src/store/SNAPSHOT.md, "Frames"): Huffman codes only, in blocks that can
// be found, and read, independently of each other. Stock zstd reads them; only this profile is read here.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "codec/code_lengths.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gpu_sleep::codec {

/// Contents of a block; the last one of a frame may be shorter.
inline constexpr Bytes k_block_bytes = 16 * k_kib;
/// Most contents of a frame.
inline constexpr Bytes k_frame_content_bytes = 4 * k_mib;
/// The streams of a coded block: three of a quarter of its contents, rounded up, and the rest.
inline constexpr std::size_t k_streams = 4;

enum class BlockKind : std::uint8_t { raw, repeated, coded };

/// Where a block of a frame lies: 12 bytes, little endian, as they are in files and on GPUs.
struct BlockEntry {
    /// The kind in the highest 8 bits; below it where its bytes begin in the frame: the contents (raw), the
    /// byte that repeats, or the first stream.
    std::uint32_t place = 0;
    std::array<std::uint16_t, k_streams> stream_bytes{}; ///< one stream after the other; 0 unless coded

    [[nodiscard]] BlockKind kind() const noexcept { return static_cast<BlockKind>(place >> 24); }
    [[nodiscard]] std::uint32_t offset() const noexcept { return place & 0xFFFFFF; }
    friend bool operator==(const BlockEntry&, const BlockEntry&) = default;
};
static_assert(sizeof(BlockEntry) == 12);

[[nodiscard]] constexpr std::size_t block_count(Bytes content_bytes) noexcept {
    return static_cast<std::size_t>((content_bytes + k_block_bytes - 1) / k_block_bytes);
}

/// The size of the buffer that encode_frame() needs. It is larger than the frame: a block that turns out not
/// to become smaller is written again.
[[nodiscard]] constexpr std::size_t frame_bound(Bytes content_bytes) noexcept {
    return static_cast<std::size_t>(content_bytes + 4 * block_count(content_bytes) + 32 * k_kib);
}

/// Writes `content`, 1 to k_frame_content_bytes, as a frame to `out` (at least frame_bound() bytes) and an
/// entry for each block to `entries` (block_count() of them). Returns the frame's bytes: at most 10 bytes,
/// and 3 for each block, more than the contents. Thread-safe.
[[nodiscard]] std::size_t encode_frame(std::span<const std::byte> content, std::span<std::byte> out,
                                       std::span<BlockEntry> entries) noexcept;

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
