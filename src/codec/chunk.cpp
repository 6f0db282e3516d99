// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks as src/store/SNAPSHOT.md, "Chunks", describes them: sizes of frames, planes, the odd bytes.
// Planes are split and joined sixteen values at a time where the processor has SSE2, as every x86-64 has.

#define ZSTD_STATIC_LINKING_ONLY // contexts in memory of ours; Huffman codes at the fastest level
#include "codec/chunk.hpp"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

static_assert(std::endian::native == std::endian::little, "a big-endian host must swap here");

template <class Value>
void split_from(std::size_t first, std::size_t count, const std::byte* values, std::byte* planes) noexcept {
    for (auto i = first; i < count; ++i) {
        Value value = 0;
        std::memcpy(&value, values + i * sizeof(Value), sizeof(Value));
        value = std::rotl(value, 1);
        for (std::size_t p = 0; p < sizeof(Value); ++p)
            planes[p * count + i] = static_cast<std::byte>(value >> (8 * p) & 0xFF);
    }
}

template <class Value>
void join_from(std::size_t first, std::size_t count, const std::byte* const* planes,
               std::byte* values) noexcept {
    for (auto i = first; i < count; ++i) {
        Value value = 0;
        for (std::size_t p = 0; p < sizeof(Value); ++p)
            value = static_cast<Value>(value | std::to_integer<Value>(planes[p][i]) << (8 * p));
        value = std::rotr(value, 1);
        std::memcpy(values + i * sizeof(Value), &value, sizeof(Value));
    }
}

#ifdef __SSE2__

constexpr std::size_t k_step = 16; // values that one round takes

__m128i load_16(const std::byte* from) noexcept {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

void store_16(std::byte* to, __m128i value) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

/// Each returns how many values it did: all but the last few.
std::size_t split_2(std::size_t count, const std::byte* values, std::byte* planes) noexcept {
    const auto low_byte = _mm_set1_epi16(0xFF);
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_slli_epi16(v, 1), _mm_srli_epi16(v, 15)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        const auto a = rotated(load_16(values + 2 * i));
        const auto b = rotated(load_16(values + 2 * i + 16));
        store_16(planes + i, _mm_packus_epi16(_mm_and_si128(a, low_byte), _mm_and_si128(b, low_byte)));
        store_16(planes + count + i, _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
    }
    return i;
}

std::size_t join_2(std::size_t count, const std::byte* const* planes, std::byte* values) noexcept {
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_srli_epi16(v, 1), _mm_slli_epi16(v, 15)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        const auto low = load_16(planes[0] + i);
        const auto high = load_16(planes[1] + i);
        store_16(values + 2 * i, rotated(_mm_unpacklo_epi8(low, high)));
        store_16(values + 2 * i + 16, rotated(_mm_unpackhi_epi8(low, high)));
    }
    return i;
}

std::size_t split_4(std::size_t count, const std::byte* values, std::byte* planes) noexcept {
    const auto low_byte = _mm_set1_epi32(0xFF);
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_slli_epi32(v, 1), _mm_srli_epi32(v, 31)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        __m128i v[4];
        for (std::size_t q = 0; q < 4; ++q) v[q] = rotated(load_16(values + 4 * i + 16 * q));
        for (std::size_t p = 0; p < 4; ++p) {
            const auto byte = [&](std::size_t q) {
                return _mm_and_si128(_mm_srli_epi32(v[q], static_cast<int>(8 * p)), low_byte);
            };
            const auto halves = _mm_packs_epi32(byte(0), byte(1));
            store_16(planes + p * count + i, _mm_packus_epi16(halves, _mm_packs_epi32(byte(2), byte(3))));
        }
    }
    return i;
}

std::size_t join_4(std::size_t count, const std::byte* const* planes, std::byte* values) noexcept {
    const auto rotated = [](__m128i v) { return _mm_or_si128(_mm_srli_epi32(v, 1), _mm_slli_epi32(v, 31)); };
    std::size_t i = 0;
    for (; i + k_step <= count; i += k_step) {
        __m128i p[4];
        for (std::size_t q = 0; q < 4; ++q) p[q] = load_16(planes[q] + i);
        const __m128i low[2] = {_mm_unpacklo_epi8(p[0], p[1]), _mm_unpackhi_epi8(p[0], p[1])};
        const __m128i high[2] = {_mm_unpacklo_epi8(p[2], p[3]), _mm_unpackhi_epi8(p[2], p[3])};
        for (std::size_t q = 0; q < 2; ++q) {
            store_16(values + 4 * i + 32 * q, rotated(_mm_unpacklo_epi16(low[q], high[q])));
            store_16(values + 4 * i + 32 * q + 16, rotated(_mm_unpackhi_epi16(low[q], high[q])));
        }
    }
    return i;
}

#else

constexpr auto none = [](auto&&...) noexcept -> std::size_t { return 0; };
constexpr auto split_2 = none, split_4 = none, join_2 = none, join_4 = none;

#endif

} // namespace

void split_planes(unsigned width, std::span<const std::byte> values, std::span<std::byte> planes) noexcept {
    const auto count = values.size() / width;
    if (width == 2)
        split_from<std::uint16_t>(split_2(count, values.data(), planes.data()), count, values.data(),
                                  planes.data());
    else
        split_from<std::uint32_t>(split_4(count, values.data(), planes.data()), count, values.data(),
                                  planes.data());
}

void join_planes(unsigned width, const std::byte* const* planes, std::span<std::byte> values) noexcept {
    const auto count = values.size() / width;
    if (width == 2)
        join_from<std::uint16_t>(join_2(count, planes, values.data()), count, planes, values.data());
    else
        join_from<std::uint32_t>(join_4(count, planes, values.data()), count, planes, values.data());
}

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

/// Null where this libzstd has no such context.
ZSTD_CCtx* make_encoder(void* memory, std::size_t bytes) noexcept {
    auto* const context = ZSTD_initStaticCCtx(memory, bytes);
    if (context == nullptr ||
        ZSTD_isError(ZSTD_CCtx_reset(context, ZSTD_reset_parameters)) != 0 || // sets defaults
        ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, ZSTD_minCLevel())) != 0 ||
        ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_ps_enable)) != 0)
        return nullptr;
    return context;
}

/// Maps `bytes` for the planes of a chunk and, behind them, the context that `make` makes there; once.
template <class Context>
Result<void> begin(Pages& memory, Context*& context, std::size_t bytes,
                   Context* (*make)(void* memory, std::size_t bytes)) {
    if (memory) return {};
    auto mapped = Pages::map(bytes);
    if (!mapped) return make_error(ErrorCode::out_of_host_memory, "no host memory to compress with");
    const auto space = mapped.bytes().subspan(k_chunk_bytes);
    context = make(space.data(), space.size());
    if (context == nullptr)
        return make_error(ErrorCode::internal, "libzstd {} cannot make a coder", ZSTD_versionString());
    memory = std::move(mapped);
    return {};
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

Result<ChunkEncoder::Encoded> ChunkEncoder::encode(std::span<const std::byte> content,
                                                   std::span<std::byte> out) {
    auto shape = choose_shape(content);
    if (shape.width == 0) return Encoded{};
    GPU_SLEEP_TRY(begin(memory_, context_, held_bytes(), make_encoder));
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

Result<void> ChunkDecoder::decode(Shape shape, std::span<const std::byte> stored,
                                  std::span<std::byte> content) {
    if (!is_valid(shape) || shape.width == 0 || content.size() < shape.width ||
        content.size() > k_chunk_bytes)
        return chunk_damaged("it has no valid shape");
    if (stored.size() < k_first_plane_at) return chunk_damaged("it is truncated");
    GPU_SLEEP_TRY(begin(memory_, context_, held_bytes(), ZSTD_initStaticDCtx));
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
