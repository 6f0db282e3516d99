// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks: which shape is chosen, how small they get, there and back, cut and bent.

#include "codec/chunk.hpp"
#include "support/catch.hpp"
#include "support/weights.hpp"

namespace gpu_sleep::codec {
namespace {

using test::ByteVector;

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
        const auto decoded = decode(stored, content.size());
        REQUIRE(decoded);
        CHECK(*decoded == content);
    }
    return static_cast<double>(stored.bytes.size()) / static_cast<double>(content.size());
}

TEST_CASE("Chunks: the shape suits the contents, and they get as small as they should", "[codec]") {
    constexpr auto k_bytes = static_cast<std::size_t>(k_chunk_bytes);
    CHECK(check_round_trip(test::normal_bf16(k_bytes / 2), {2, 0b10}) <= 0.67);
    CHECK(check_round_trip(test::normal_e4m3(k_bytes), {1, 0b1}) <= 0.83);
    CHECK(check_round_trip(test::normal_fp32(k_bytes / 4), {4, 0b1000}) <= 0.84);
    CHECK(check_round_trip(test::random_bytes(k_bytes), {0, 0}) <= 1);
    CHECK(check_round_trip(ByteVector(k_bytes, std::byte{3}), {1, 0b1}) <= 0.002);
}

TEST_CASE("Chunks: half weights, half zeros", "[codec]") {
    auto content = test::normal_bf16(k_mib);
    content.resize(k_chunk_bytes);
    CHECK(check_round_trip(content, {2, 0b11}) <= 0.5);
}

TEST_CASE("Chunks: any length, the odd bytes too", "[codec]") {
    const auto bf16 = test::normal_bf16(40'000);
    const auto fp32 = test::normal_fp32(40'000);
    for (const std::size_t bytes : {1, 2, 3, 4, 5, 100, 511, 515, 4097, 32'767, 32'769, 65'537, 70'003})
        for (const auto* source : {&bf16, &fp32}) {
            const ByteVector content(source->begin(), source->begin() + static_cast<std::ptrdiff_t>(bytes));
            const auto stored = encode(content);
            CHECK(stored.bytes.size() <= bytes);
            if (stored.shape.width == 0) continue;
            const auto decoded = decode(stored, bytes);
            REQUIRE(decoded);
            CHECK(*decoded == content);
        }
}

TEST_CASE("Chunks: one that is cut anywhere, or longer, is refused", "[codec]") {
    const auto content = test::normal_bf16(2'001);
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
    const auto content = test::normal_bf16(2'000);
    const auto stored = encode(content);
    for (unsigned width = 0; width < 6; ++width)
        for (unsigned frames = 0; frames < 32; ++frames) {
            const Shape shape{static_cast<std::uint8_t>(width), static_cast<std::uint8_t>(frames)};
            const auto decoded = decode({shape, stored.bytes}, content.size());
            CHECK(decoded.has_value() == (shape == stored.shape));
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

} // namespace
} // namespace gpu_sleep::codec
