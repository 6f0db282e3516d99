// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Chunks beside stock zstd: what lies where, as SNAPSHOT.md says, and what a chunk may not hold in a frame's
// place.

#include "base/checksum.hpp"
#include "codec/chunk.hpp"
#include "support/catch.hpp"
#include "support/weights.hpp"

#include <zstd.h>

namespace gpu_sleep::codec {
namespace {

using test::ByteVector;

struct FreeContext {
    void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
};

constexpr std::size_t k_head = 16; ///< of a chunk, before its first plane

ByteVector encode(const ByteVector& content, Shape expected) {
    ChunkEncoder encoder;
    ByteVector out(ChunkEncoder::bound(content.size()));
    const auto encoded = *encoder.encode(content, out);
    REQUIRE(encoded.shape == expected);
    out.resize(encoded.bytes);
    return out;
}

TEST_CASE("zstd reads the frames of a chunk where SNAPSHOT.md says they are", "[codec]") {
    for (const std::size_t values : {1'000, 70'001, 2'097'152}) {
        const auto content = test::normal_bf16(values);
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

TEST_CASE("XXH64: zstd's content checksum is its lower half", "[checksum]") {
    for (std::size_t length = 1; length < 300; ++length) {
        const auto content = test::random_bytes(length, length);
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
