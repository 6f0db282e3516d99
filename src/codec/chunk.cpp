// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks as src/store/SNAPSHOT.md, "Chunks", describes them: sizes of frames, planes, the odd bytes.

#define ZSTD_STATIC_LINKING_ONLY // contexts in memory of ours; Huffman codes at the fastest level
#include "codec/chunk.hpp"

#include "codec/planes.hpp"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

// libzstd calls these if anybody defines them. These definitions keep it from calling the program's.
extern "C" {
unsigned long long ZSTD_trace_compress_begin(const ZSTD_CCtx*);
void ZSTD_trace_compress_end(unsigned long long, const void*);
unsigned long long ZSTD_trace_decompress_begin(const ZSTD_DCtx*);
void ZSTD_trace_decompress_end(unsigned long long, const void*);

unsigned long long ZSTD_trace_compress_begin(const ZSTD_CCtx*) {
    return 0; // do not trace
}
void ZSTD_trace_compress_end(unsigned long long, const void*) {}
unsigned long long ZSTD_trace_decompress_begin(const ZSTD_DCtx*) {
    return 0;
}
void ZSTD_trace_decompress_end(unsigned long long, const void*) {}
}

namespace gpu_sleep::codec {
namespace {

constexpr std::size_t k_plane_alignment = 16; // for kernels that read planes a word at a time
constexpr std::size_t k_sample_bytes = 16 * k_kib;
constexpr std::size_t k_sample_piece_bytes = 256;

/// A plane pays if it shrinks to less than this.
constexpr double k_min_gain = 0.97;
/// A wider element pays if all contents shrink by so much more: planes cost time.
constexpr double k_gain_of_width = 0.004;

/// No search for matches, which weights do not have: codec_bench has bf16 coded in 0.55 of the time of level
/// 1, and smaller.
ZSTD_compressionParameters parameters() noexcept {
    return ZSTD_getCParams(ZSTD_minCLevel(), k_chunk_bytes, 0);
}

Error no_memory() {
    return make_error(ErrorCode::out_of_host_memory, "no host memory to compress with");
}

constexpr std::size_t aligned(std::size_t size) noexcept {
    return static_cast<std::size_t>(round_up(size, k_plane_alignment));
}

bool has_frame(Shape shape, unsigned plane) noexcept {
    return (shape.frames >> plane & 1) != 0;
}

/// Part by which entropy coding would shrink bytes with this histogram, near enough.
double expected_size(std::span<const std::byte> bytes) noexcept {
    std::array<std::uint32_t, 256> histogram{};
    for (const auto byte : bytes) ++histogram[std::to_integer<std::size_t>(byte)];
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

/// The sizes of frames, one for each plane, come first; 0 for a raw one.
constexpr std::size_t k_first_plane_at = aligned(k_widest * sizeof(std::uint32_t));

/// Whether `bytes` are one frame of today's format, without a dictionary, of contents of this size. libzstd
/// may be built to read formats of its past, several frames and frames without contents, too.
bool is_frame(std::span<const std::byte> bytes, std::size_t content_bytes) noexcept {
    std::uint32_t magic = 0;
    if (bytes.size() < sizeof(magic)) return false;
    std::memcpy(&magic, bytes.data(), sizeof(magic));
    return magic == ZSTD_MAGICNUMBER && ZSTD_getDictID_fromFrame(bytes.data(), bytes.size()) == 0 &&
           ZSTD_getFrameContentSize(bytes.data(), bytes.size()) == content_bytes &&
           ZSTD_findFrameCompressedSize(bytes.data(), bytes.size()) == bytes.size();
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
    const auto plane = aligned(ZSTD_compressBound(static_cast<std::size_t>(content_bytes)));
    return k_first_plane_at + plane + k_widest * (ZSTD_compressBound(0) + k_plane_alignment);
}

std::size_t ChunkEncoder::held_bytes() noexcept {
    return k_chunk_bytes + ZSTD_estimateCCtxSize_usingCParams(parameters());
}

Result<void> ChunkEncoder::begin() {
    if (memory_) return {};
    auto memory = Pages::map(held_bytes());
    if (!memory) return no_memory();
    const auto space = memory.bytes().subspan(k_chunk_bytes);
    context_ = ZSTD_initStaticCCtx(space.data(), space.size());
    if (context_ == nullptr ||
        ZSTD_isError(ZSTD_CCtx_reset(context_, ZSTD_reset_parameters)) != 0 || // sets defaults
        ZSTD_isError(ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, ZSTD_minCLevel())) != 0 ||
        ZSTD_isError(ZSTD_CCtx_setParameter(context_, ZSTD_c_literalCompressionMode, ZSTD_ps_enable)) != 0)
        return make_error(ErrorCode::internal, "libzstd {} has no such context", ZSTD_versionString());
    memory_ = std::move(memory);
    return {};
}

Result<ChunkEncoder::Encoded> ChunkEncoder::encode(std::span<const std::byte> content,
                                                   std::span<std::byte> out) {
    auto shape = choose_shape(content);
    if (shape.width == 0) return Encoded{};
    GPU_SLEEP_TRY(begin());
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
        const auto split = memory_.bytes().first(values.size());
        split_planes(shape.width, values, split);
        planes = split;
    }
    std::array<std::uint32_t, k_widest> sizes{};
    auto at = k_first_plane_at;
    for (unsigned p = 0; p < shape.width; ++p) {
        const auto plane = planes.subspan(p * plane_bytes, plane_bytes);
        std::size_t bytes = plane_bytes;
        if (has_frame(shape, p))
            bytes = ZSTD_compress2(context_, out.data() + at, out.size() - at, plane.data(), plane_bytes);
        if (has_frame(shape, p) && bytes < plane_bytes) { // an error is a larger number
            sizes[p] = static_cast<std::uint32_t>(bytes);
        } else {
            shape.frames = static_cast<std::uint8_t>(shape.frames & ~(1U << p));
            bytes = plane_bytes;
            std::memcpy(out.data() + at, plane.data(), bytes);
        }
        std::memset(out.data() + at + bytes, 0, aligned(bytes) - bytes);
        at += aligned(bytes);
    }
    std::memcpy(out.data(), sizes.data(), sizeof(sizes));
    const auto odd = content.subspan(values.size());
    std::copy(odd.begin(), odd.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
    return at + odd.size();
}

std::size_t ChunkDecoder::held_bytes() noexcept {
    return k_chunk_bytes + ZSTD_estimateDCtxSize();
}

Result<void> ChunkDecoder::begin() {
    if (memory_) return {};
    auto memory = Pages::map(held_bytes());
    if (!memory) return no_memory();
    const auto space = memory.bytes().subspan(k_chunk_bytes);
    context_ = ZSTD_initStaticDCtx(space.data(), space.size());
    if (context_ == nullptr)
        return make_error(ErrorCode::internal, "libzstd {} has no such context", ZSTD_versionString());
    memory_ = std::move(memory);
    return {};
}

Result<void> ChunkDecoder::decode(Shape shape, std::span<const std::byte> stored,
                                  std::span<std::byte> content) {
    if (!is_valid(shape) || shape.width == 0 || content.size() < shape.width ||
        content.size() > k_chunk_bytes)
        return chunk_damaged("it has no valid shape");
    if (stored.size() < k_first_plane_at) return chunk_damaged("it is cut");
    GPU_SLEEP_TRY(begin());
    std::array<std::uint32_t, k_widest> sizes;
    std::memcpy(sizes.data(), stored.data(), sizeof(sizes));
    const auto plane_bytes = content.size() / shape.width;
    auto at = k_first_plane_at;
    const auto values = content.first(plane_bytes * shape.width);
    std::array<const std::byte*, k_widest> planes{};
    for (unsigned p = 0; p < k_widest; ++p) {
        if (!has_frame(shape, p) && sizes[p] != 0) return chunk_damaged("a raw plane has a frame's size");
        if (p >= shape.width) continue;
        const auto bytes = has_frame(shape, p) ? std::size_t{sizes[p]} : plane_bytes;
        if (at > stored.size() || bytes > stored.size() - at)
            return chunk_damaged("a plane has the wrong size");
        planes[p] = stored.data() + at;
        if (has_frame(shape, p)) {
            const auto decoded =
                shape.width == 1 ? values : memory_.bytes().subspan(p * plane_bytes, plane_bytes);
            if (!is_frame(stored.subspan(at, bytes), plane_bytes) ||
                ZSTD_decompressDCtx(context_, decoded.data(), plane_bytes, planes[p], bytes) != plane_bytes)
                return chunk_damaged("a frame of zstd cannot be decoded");
            planes[p] = decoded.data();
        }
        at += aligned(bytes);
    }
    const auto odd = content.subspan(values.size());
    if (at > stored.size() || stored.size() - at != odd.size()) return chunk_damaged("it has the wrong size");
    std::copy_n(stored.begin() + static_cast<std::ptrdiff_t>(at), odd.size(), odd.begin());
    if (shape.width > 1) join_planes(shape.width, planes.data(), values);
    return {};
}

} // namespace gpu_sleep::codec
