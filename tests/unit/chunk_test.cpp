// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks: which shape is chosen, how small they get, there and back, cut and bent; their byte planes; and
// beside stock zstd what lies where, as SNAPSHOT.md says, and what may not stand in a frame's place.

#include "base/checksum.hpp"
#include "codec/chunk.hpp"
#include "support/catch.hpp"
#include "support/weights.hpp"

#include <zstd.h>

namespace gpu_sleep::codec {
namespace {

using namespace test;

TEST_CASE("Planes: joining undoes splitting, for every number of values", "[codec]") {
    for (const std::size_t width : {2, 4})
        for (std::size_t count = 1; count < 100; ++count) {
            const auto values = random_bytes(count * width, count);
            ByteVector planes(values.size());
            split_planes(static_cast<unsigned>(width), values, planes);
            std::array<const std::byte*, k_widest> places{};
            for (std::size_t p = 0; p < width; ++p) places[p] = &planes[p * count];
            ByteVector joined(values.size());
            join_planes(static_cast<unsigned>(width), places.data(), joined);
            CHECK(joined == values);
        }
}

TEST_CASE("Planes: the exponent of every value is its byte of the last plane", "[codec]") {
    constexpr std::size_t k_count = 1001;
    const auto bf16 = normal_bf16(k_count);
    ByteVector planes(bf16.size());
    split_planes(2, bf16, planes);
    const auto fp32 = normal_fp32(k_count);
    ByteVector wide_planes(fp32.size());
    split_planes(4, fp32, wide_planes);
    for (std::size_t i = 0; i < k_count; ++i) {
        std::uint16_t narrow = 0;
        std::uint32_t wide = 0;
        std::memcpy(&narrow, &bf16[2 * i], 2);
        std::memcpy(&wide, &fp32[4 * i], 4);
        CHECK(planes[k_count + i] == static_cast<std::byte>(narrow >> 7 & 0xFF));
        CHECK(planes[i] == static_cast<std::byte>((narrow << 1 | narrow >> 15) & 0xFF));
        CHECK(wide_planes[3 * k_count + i] == static_cast<std::byte>(wide >> 23 & 0xFF));
        CHECK(wide_planes[i] == static_cast<std::byte>((wide << 1 | wide >> 31) & 0xFF));
    }
}

struct Stored {
    Shape shape;
    ByteVector bytes;
};

Stored encode(const ByteVector& content) {
    ChunkEncoder encoder;
    ByteVector out(ChunkEncoder::bound(content.size()));
    const auto encoded = *encoder.encode(content, out);
    if (encoded.shape.width == 0) return {encoded.shape, content};
    out.resize(encoded.bytes);
    return {encoded.shape, out};
}

Result<ByteVector> decode(const Stored& stored, std::size_t content_bytes) {
    static ChunkDecoder decoder; // its planes are large, and what was damaged leaves nothing behind in them
    ByteVector content(content_bytes);
    const auto result = decoder.decode(stored.shape, stored.bytes, content);
    if (!result) return result.error();
    return content;
}

/// Returns the part of its size that remains.
double check_round_trip(const ByteVector& content, Shape shape) {
    const auto stored = encode(content);
    CHECK(stored.shape.width == shape.width);
    CHECK(stored.shape.frames == shape.frames);
    CHECK(is_valid(stored.shape));
    if (shape.width != 0) {
        CHECK(need(decode(stored, content.size())) == content);
    }
    return static_cast<double>(stored.bytes.size()) / static_cast<double>(content.size());
}

TEST_CASE("Chunks: the shape suits the contents, and they get as small as they should", "[codec]") {
    constexpr auto k_bytes = static_cast<std::size_t>(k_chunk_bytes);
    CHECK(check_round_trip(normal_bf16(k_bytes / 2), {2, 0b10}) <= 0.67);
    CHECK(check_round_trip(normal_e4m3(k_bytes), {1, 0b1}) <= 0.83);
    CHECK(check_round_trip(normal_fp32(k_bytes / 4), {4, 0b1000}) <= 0.84);
    CHECK(check_round_trip(random_bytes(k_bytes), {0, 0}) <= 1);
    CHECK(check_round_trip(ByteVector(k_bytes, std::byte{3}), {1, 0b1}) <= 0.002);
}

TEST_CASE("Chunks: half weights, half zeros", "[codec]") {
    auto content = normal_bf16(k_mib);
    content.resize(k_chunk_bytes);
    CHECK(check_round_trip(content, {2, 0b11}) <= 0.5);
}

TEST_CASE("Chunks: any length, the odd bytes too", "[codec]") {
    const auto bf16 = normal_bf16(40'000);
    const auto fp32 = normal_fp32(40'000);
    for (const std::size_t bytes : {1, 2, 3, 4, 5, 100, 511, 515, 4097, 32'767, 32'769, 65'537, 70'003})
        for (const auto* source : {&bf16, &fp32}) {
            const ByteVector content(source->begin(), source->begin() + static_cast<std::ptrdiff_t>(bytes));
            const auto stored = encode(content);
            CHECK(stored.bytes.size() <= bytes);
            if (stored.shape.width == 0) continue;
            CHECK(need(decode(stored, bytes)) == content);
        }
}

TEST_CASE("Chunks: one that is cut anywhere, or longer, is refused", "[codec]") {
    const auto content = normal_bf16(2'001);
    const auto stored = encode(content);
    REQUIRE(stored.shape.width == 2);
    const auto is_read = [&](ByteVector bytes) {
        return decode({stored.shape, std::move(bytes)}, content.size()).has_value();
    };
    for (auto end = stored.bytes.begin(); end != stored.bytes.end(); ++end)
        if (is_read(ByteVector(stored.bytes.begin(), end))) FAIL("cut at " << end - stored.bytes.begin());
    auto longer = stored.bytes;
    longer.push_back(std::byte{0});
    CHECK_FALSE(is_read(longer));
    CHECK(is_read(stored.bytes));
}

TEST_CASE("Chunks: a wrong shape or size, and flipped bits, stay within bounds", "[codec]") {
    const auto content = normal_bf16(2'000);
    const auto stored = encode(content);
    for (unsigned width = 0; width < 6; ++width)
        for (unsigned frames = 0; frames < 32; ++frames) {
            const Shape shape{static_cast<std::uint8_t>(width), static_cast<std::uint8_t>(frames)};
            CHECK(decode({shape, stored.bytes}, content.size()).has_value() == (shape == stored.shape));
        }
    for (std::size_t bytes = 0; bytes < 2 * content.size(); bytes += 37) CHECK_FALSE(decode(stored, bytes));
    for (std::size_t i = 0; i < 600; ++i)
        for (int bit = 0; bit < 8; ++bit) {
            auto bent = stored;
            bent.bytes[i] ^= static_cast<std::byte>(1 << bit);
            const auto decoded = decode(bent, content.size());
            if (!decoded) CHECK(decoded.error().code == ErrorCode::damaged);
        }
}

struct FreeContext {
    void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
};

constexpr std::size_t k_head = 16; ///< of a chunk, before its first plane

ByteVector encode(const ByteVector& content, Shape expected) {
    auto stored = encode(content);
    REQUIRE(stored.shape == expected);
    return std::move(stored.bytes);
}

TEST_CASE("zstd reads the frames of a chunk where SNAPSHOT.md says they are", "[codec]") {
    for (const std::size_t values : {1'000, 70'001, 2'097'152}) {
        const auto content = normal_bf16(values);
        ByteVector planes(content.size());
        split_planes(2, content, planes);
        const auto stored = encode(content, {2, 0b10});
        std::array<std::uint32_t, 4> sizes{};
        std::memcpy(sizes.data(), stored.data(), sizeof(sizes));
        CHECK(sizes[0] == 0);
        CHECK(std::equal(planes.begin(), planes.begin() + static_cast<std::ptrdiff_t>(values),
                         stored.begin() + k_head));
        const auto* const frame = &stored[k_head + (values + 15) / 16 * 16];
        CHECK(ZSTD_getFrameContentSize(frame, sizes[1]) == values);
        ByteVector decoded(values);
        REQUIRE(ZSTD_decompress(decoded.data(), values, frame, sizes[1]) == values);
        CHECK(
            std::equal(decoded.begin(), decoded.end(), planes.begin() + static_cast<std::ptrdiff_t>(values)));
    }
}

TEST_CASE("Chunks: what libzstd would read, but no encoder writes, is refused", "[codec]") {
    const ByteVector content(1'000, std::byte{3});
    const auto stored = encode(content, {1, 1});
    const ByteVector frame(stored.begin() + k_head, stored.end());
    const auto is_read = [&](std::initializer_list<ByteVector> frames) {
        ByteVector all(k_head);
        std::uint32_t size = 0;
        for (const auto& each : frames) {
            all.insert(all.end(), each.begin(), each.end());
            size += static_cast<std::uint32_t>(each.size());
        }
        std::memcpy(all.data(), &size, sizeof(size));
        all.resize((all.size() + 15) / 16 * 16);
        ByteVector decoded(content.size());
        return ChunkDecoder().decode({1, 1}, all, decoded).has_value();
    };
    const auto bytes = [](std::initializer_list<int> values) {
        ByteVector made;
        for (const auto value : values) made.push_back(static_cast<std::byte>(value));
        return made;
    };
    ByteVector alone = frame;
    alone.resize(stored.size() - k_head);
    std::uint32_t size = 0;
    std::memcpy(&size, stored.data(), sizeof(size));
    alone.resize(size);
    CHECK(is_read({alone}));
    CHECK_FALSE(is_read({alone, bytes({0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0})})); // a frame to be skipped
    CHECK_FALSE(is_read({bytes({0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0}), alone}));
    CHECK_FALSE(is_read({alone, bytes({0x28, 0xB5, 0x2F, 0xFD, 0x20, 0, 1, 0, 0})})); // one without contents
    for (const int version : {0x22, 0x23, 0x24, 0x25, 0x26, 0x27}) { // formats of zstd 0.2 to 0.7
        auto old = alone;
        old[0] = static_cast<std::byte>(version);
        CHECK_FALSE(is_read({old}));
    }
    const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
    ByteVector made(ZSTD_compressBound(content.size()));
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 0);
    made.resize(ZSTD_compress2(context.get(), made.data(), made.size(), content.data(), content.size()));
    CHECK_FALSE(is_read({made})); // it does not say how much it holds
}

TEST_CASE("XXH64: values of the reference implementation", "[checksum]") {
    const auto hash_of = [](std::string_view text) {
        return xxh64(std::as_bytes(std::span(text.data(), text.size())));
    };
    CHECK(hash_of("") == 0xEF46DB3751D8E999);
    CHECK(hash_of("a") == 0xD24EC4F1A98C6E5B);
    CHECK(hash_of("abc") == 0x44BC2CF5AD770999);
    CHECK(hash_of("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1);
}

TEST_CASE("XXH64: zstd's content checksum is its lower half", "[checksum]") {
    for (std::size_t length = 1; length < 300; ++length) {
        const auto content = random_bytes(length, length);
        const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
        ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
        ByteVector frame(ZSTD_compressBound(length));
        const auto bytes =
            ZSTD_compress2(context.get(), frame.data(), frame.size(), content.data(), content.size());
        std::uint32_t checksum = 0;
        std::memcpy(&checksum, &frame[bytes - 4], 4);
        CHECK(checksum == static_cast<std::uint32_t>(xxh64(content)));
    }
}

} // namespace
} // namespace gpu_sleep::codec
