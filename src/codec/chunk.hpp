// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks: some megabytes of contents, compressed independently, in the way that a sample of them suggests,
// by libzstd, before which the first bytes of all values come together, then the second bytes, and so on
// (byte planes).

#pragma once

#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/units.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace gpu_sleep::codec {

inline constexpr unsigned k_widest = 4;

/// Splits values of `width` bytes (2 or 4, little endian) into planes: plane p of `planes`, which lie one
/// after the other, has byte p of each value after rotating the value left by one bit. That brings the eight
/// exponent bits of bf16 and fp32 together in the last plane. `values` and `planes` are of one size, a
/// multiple of `width`, and do not overlap. Thread-safe.
void split_planes(unsigned width, std::span<const std::byte> values, std::span<std::byte> planes) noexcept;

/// The reverse, from planes that may lie anywhere: `planes[p]` for p below `width`, each values.size() /
/// width bytes long.
void join_planes(unsigned width, const std::byte* const* planes, std::span<std::byte> values) noexcept;

/// Most contents of a chunk: a plane of it is one frame of zstd.
inline constexpr Bytes k_chunk_bytes = 4 * k_mib;

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

/// Encodes one chunk after the other with libzstd, whose state lies in the encoder's own pages: nothing comes
/// from the program's allocator. Not thread-safe: one for each thread. Move-only.
class ChunkEncoder {
public:
    /// The bytes that encode() needs at most for contents of this size.
    [[nodiscard]] static std::size_t bound(Bytes content_bytes) noexcept;
    /// The host memory that an encoder holds once used.
    [[nodiscard]] static std::size_t held_bytes() noexcept;

    struct Encoded {
        Shape shape;
        std::size_t bytes = 0;
    };

    /// Stores `content`, 1 to k_chunk_bytes, in `out`, which has at least bound(). If encoding would not
    /// make it smaller, the shape has width 0 and `out` is undefined: store the contents themselves. Errors:
    /// out_of_host_memory.
    [[nodiscard]] Result<Encoded> encode(std::span<const std::byte> content, std::span<std::byte> out);

private:
    /// Returns how many bytes that took. Planes that do not become smaller lose their bit in `shape`.
    [[nodiscard]] std::size_t encode_as(Shape& shape, std::span<const std::byte> content,
                                        std::span<std::byte> out);

    Pages memory_;                   ///< planes, then the context
    ZSTD_CCtx_s* context_ = nullptr; ///< lies in memory_
};

/// Decodes one chunk after the other, as an encoder encodes. Not thread-safe: one for each thread. Move-only.
class ChunkDecoder {
public:
    /// The host memory that a decoder holds once used.
    [[nodiscard]] static std::size_t held_bytes() noexcept;

    /// Decodes `stored`, of a chunk that is not stored as it is (width 0), into `content`, which has its
    /// size. Never reads or writes outside of either. Errors: damaged, out_of_host_memory; `content` is then
    /// undefined.
    [[nodiscard]] Result<void> decode(Shape shape, std::span<const std::byte> stored,
                                      std::span<std::byte> content);

private:
    Pages memory_;                   ///< planes, then the context
    ZSTD_DCtx_s* context_ = nullptr; ///< lies in memory_
};

} // namespace gpu_sleep::codec
