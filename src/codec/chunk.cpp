// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks as src/store/SNAPSHOT.md, "Chunks", describes them: sizes, entries of blocks, planes, the odd bytes.

#include "codec/chunk.hpp"

#include "codec/bits.hpp"
#include "codec/frame_decoder.hpp"
#include "codec/frame_encoder.hpp"
#include "codec/planes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

namespace gpu_sleep::codec {
namespace {

constexpr std::size_t k_plane_alignment = 16; // for kernels that read planes a word at a time
constexpr std::size_t k_sample_bytes = 16 * k_kib;
constexpr std::size_t k_sample_piece_bytes = 256;

/// A plane pays if it shrinks to less than this.
constexpr double k_min_gain = 0.97;
/// A wider element pays if all contents shrink by so much more: planes cost time.
constexpr double k_gain_of_width = 0.004;

Result<void> make_room(Pages& planes) {
    if (!planes) planes = Pages::map(k_chunk_bytes);
    if (planes) return {};
    return make_error(ErrorCode::out_of_host_memory, "no host memory for the planes of a chunk");
}

constexpr std::size_t aligned(std::size_t size) noexcept {
    return static_cast<std::size_t>(round_up(size, k_plane_alignment));
}

bool has_frame(Shape shape, unsigned plane) noexcept {
    return (shape.frames >> plane & 1) != 0;
}

/// Part by which entropy coding would shrink bytes with this histogram, near enough.
double expected_size(std::span<const std::byte> bytes) noexcept {
    const auto histogram = histogram_of(bytes);
    const auto total = static_cast<float>(bytes.size());
    float bits = 0;
    float values = 0;
    for (const auto count : histogram) {
        if (count == 0) continue;
        bits -= static_cast<float>(count) * std::log2(static_cast<float>(count) / total);
        values += 1;
    }
    // A sample looks less random than what it was taken from (Miller and Madow).
    constexpr float k_half_bit = 0.7213F; // 1 / (2 ln 2)
    return static_cast<double>((bits + k_half_bit * (values - 1)) / (8 * total));
}

using Sample = std::array<std::byte, k_sample_bytes>;

/// Pieces from all over `content`, each beginning at a multiple of 16. Returns how many bytes they have.
std::size_t take_sample(std::span<const std::byte> content, Sample& sample) noexcept {
    if (content.size() <= k_sample_bytes) {
        std::copy(content.begin(), content.end(), sample.begin());
        return content.size();
    }
    constexpr auto k_pieces = k_sample_bytes / k_sample_piece_bytes;
    const auto last = content.size() - k_sample_piece_bytes;
    for (std::size_t i = 0; i < k_pieces; ++i)
        std::memcpy(&sample[i * k_sample_piece_bytes], &content[last / k_pieces * i / 16 * 16],
                    k_sample_piece_bytes);
    return k_sample_bytes;
}

/// The entries of the blocks of all planes that are frames, in bytes.
std::size_t index_bytes(Shape shape, std::size_t plane_bytes) noexcept {
    return static_cast<std::size_t>(std::popcount(shape.frames)) * block_count(plane_bytes) *
           sizeof(BlockEntry);
}

/// The sizes of frames, one for each plane, come first; 0 for a raw one.
std::size_t sizes_bytes(Shape shape) noexcept {
    return shape.width * sizeof(std::uint32_t);
}

Error chunk_damaged(std::string_view what) {
    return make_error(ErrorCode::damaged, "a chunk is damaged: {}", what);
}

} // namespace

bool is_valid(Shape shape) noexcept {
    if (shape.width == 0) return shape.frames == 0;
    return (shape.width == 1 || shape.width == 2 || shape.width == 4) && shape.frames != 0 &&
           shape.frames >> shape.width == 0;
}

Shape choose_shape(std::span<const std::byte> content) noexcept {
    Shape best;
    double best_size = 1;
    Sample taken;
    Sample planes;
    const auto taken_bytes = take_sample(content, taken);
    for (const std::uint8_t width : {1, 2, 4}) {
        const auto plane_bytes = taken_bytes / width;
        if (plane_bytes == 0) break;
        const auto values = std::span(taken).first(plane_bytes * width);
        if (width == 1)
            std::copy(values.begin(), values.end(), planes.begin());
        else
            split_planes(width, values, std::span(planes).first(values.size()));
        Shape shape{width, 0};
        double size = 0;
        for (unsigned p = 0; p < width; ++p) {
            const auto plane = expected_size(std::span(planes).subspan(p * plane_bytes, plane_bytes));
            const bool pays = plane < k_min_gain;
            if (pays) shape.frames = static_cast<std::uint8_t>(shape.frames | 1U << p);
            size += (pays ? plane : 1) / width;
        }
        if (shape.frames == 0 || size > best_size - k_gain_of_width) continue;
        best = shape;
        best_size = size;
    }
    return best;
}

std::size_t ChunkEncoder::bound(Bytes content_bytes) noexcept {
    return frame_bound(content_bytes) + static_cast<std::size_t>(content_bytes / 512) + 64 * k_kib;
}

Result<ChunkEncoder::Encoded> ChunkEncoder::encode(std::span<const std::byte> content,
                                                   std::span<std::byte> out) {
    auto shape = choose_shape(content);
    if (shape.width == 0) return Encoded{};
    if (shape.width > 1) GPU_SLEEP_TRY(make_room(planes_));
    const auto bytes = encode_as(shape, content, out);
    if (shape.frames == 0 || bytes >= content.size()) return Encoded{};
    return Encoded{shape, bytes};
}

std::size_t ChunkEncoder::encode_as(Shape& shape, std::span<const std::byte> content,
                                    std::span<std::byte> out) {
    const auto plane_bytes = content.size() / shape.width;
    const auto values = content.first(plane_bytes * shape.width);
    auto planes = values;
    if (shape.width > 1) {
        const auto split = planes_.bytes().first(values.size());
        split_planes(shape.width, values, split);
        planes = split;
    }
    std::vector<BlockEntry> entries(block_count(plane_bytes));
    auto index = sizes_bytes(shape);
    auto at = aligned(index + index_bytes(shape, plane_bytes));
    std::memset(out.data(), 0, at);
    for (unsigned p = 0; p < shape.width; ++p) {
        const auto plane = planes.subspan(p * plane_bytes, plane_bytes);
        std::size_t bytes = plane_bytes;
        if (has_frame(shape, p)) {
            bytes = encode_frame(plane, out.subspan(at), entries);
            store(out.data() + p * sizeof(std::uint32_t), static_cast<std::uint32_t>(bytes));
            std::memcpy(out.data() + index, entries.data(), entries.size() * sizeof(BlockEntry));
            index += entries.size() * sizeof(BlockEntry);
        } else {
            std::memcpy(out.data() + at, plane.data(), plane.size());
        }
        std::memset(out.data() + at + bytes, 0, aligned(bytes) - bytes);
        at += aligned(bytes);
    }
    const auto odd = content.subspan(values.size());
    std::copy(odd.begin(), odd.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
    return at + odd.size();
}

Result<void> ChunkDecoder::decode(Shape shape, std::span<const std::byte> stored,
                                  std::span<std::byte> content) {
    if (!is_valid(shape) || shape.width == 0 || content.size() < shape.width ||
        content.size() > k_chunk_bytes)
        return chunk_damaged("it has no valid shape");
    const auto plane_bytes = content.size() / shape.width;
    auto index = sizes_bytes(shape);
    auto at = aligned(index + index_bytes(shape, plane_bytes));
    const auto values = content.first(plane_bytes * shape.width);
    if (shape.width > 1) GPU_SLEEP_TRY(make_room(planes_));
    std::array<const std::byte*, k_widest> planes{};
    for (unsigned p = 0; p < shape.width; ++p) {
        if (at > stored.size()) return chunk_damaged("it is cut");
        const bool is_frame = has_frame(shape, p);
        const auto size = load<std::uint32_t>(stored.data() + p * sizeof(std::uint32_t));
        const auto bytes = is_frame ? std::size_t{size} : plane_bytes;
        if ((!is_frame && size != 0) || bytes > stored.size() - at)
            return chunk_damaged("a plane has the wrong size");
        const auto plane = stored.subspan(at, bytes);
        planes[p] = plane.data();
        at += aligned(bytes);
        if (!is_frame) continue;
        const auto frame = FrameDecoder::open(plane);
        if (!frame) return frame.error();
        const auto entries_bytes = frame->blocks().size() * sizeof(BlockEntry);
        if (frame->content_bytes() != plane_bytes ||
            std::memcmp(frame->blocks().data(), stored.data() + index, entries_bytes) != 0)
            return chunk_damaged("the places of blocks are not those of the frame");
        index += entries_bytes;
        const auto decoded =
            shape.width == 1 ? values : planes_.bytes().subspan(p * plane_bytes, plane_bytes);
        GPU_SLEEP_TRY(frame->decode(decoded));
        planes[p] = decoded.data();
    }
    const auto odd = content.subspan(values.size());
    if (at > stored.size() || stored.size() - at != odd.size()) return chunk_damaged("it has the wrong size");
    std::copy_n(stored.begin() + static_cast<std::ptrdiff_t>(at), odd.size(), odd.begin());
    if (shape.width > 1) join_planes(shape.width, planes.data(), values);
    return {};
}

} // namespace gpu_sleep::codec
