// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks: some megabytes of contents, compressed independently, in the way that a sample of them suggests.

#pragma once

#include "base/pages.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "codec/frame.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpu_sleep::codec {

/// Most contents of a chunk: a plane of it is one frame.
inline constexpr Bytes k_chunk_bytes = k_frame_content_bytes;

/// How a chunk is stored.
struct Shape {
    std::uint8_t width = 0;  ///< bytes of an element (1, 2 or 4); 0 if the contents are stored as they are
    std::uint8_t frames = 0; ///< bit p: plane p is a frame, not raw; none if width is 0
    friend bool operator==(const Shape&, const Shape&) = default;
};

/// Whether a chunk may have this shape: width 0 without frames, or 1, 2 or 4 with at least one.
[[nodiscard]] bool is_valid(Shape shape) noexcept;

/// Looks at a sample of 16 KiB of `content` and returns the shape that makes it smallest; width 0 if no plane
/// would become 3 percent smaller. Thread-safe.
[[nodiscard]] Shape choose_shape(std::span<const std::byte> content) noexcept;

/// Encodes one chunk after the other. Not thread-safe: one for each thread; holds 4 MiB once used. Move-only.
class ChunkEncoder {
public:
    /// The bytes that encode() needs at most for contents of this size.
    [[nodiscard]] static std::size_t bound(Bytes content_bytes) noexcept;

    struct Encoded {
        Shape shape;
        std::size_t bytes = 0;
    };

    /// Stores `content`, 1 to k_chunk_bytes, in `out`, which has at least bound(). If encoding would not
    /// make it smaller, the shape has width 0 and nothing is written: store the contents themselves. Errors:
    /// out_of_host_memory.
    [[nodiscard]] Result<Encoded> encode(std::span<const std::byte> content, std::span<std::byte> out);

private:
    /// Returns how many bytes that took. Where a shape has more than one plane, they fit.
    [[nodiscard]] std::size_t encode_as(Shape& shape, std::span<const std::byte> content,
                                        std::span<std::byte> out);

    Pages planes_;
};

/// Decodes one chunk after the other. Not thread-safe: one for each thread; holds 4 MiB once used. Move-only.
class ChunkDecoder {
public:
    /// Decodes `stored`, of a chunk that is not stored as it is (width 0), into `content`, which has its
    /// size. Never reads or writes outside of either. Errors: damaged, out_of_host_memory; `content` is then
    /// undefined.
    [[nodiscard]] Result<void> decode(Shape shape, std::span<const std::byte> stored,
                                      std::span<std::byte> content);

private:
    Pages planes_;
};

} // namespace gpu_sleep::codec
