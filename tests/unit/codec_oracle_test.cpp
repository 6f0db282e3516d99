// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frames against stock zstd, in both directions.

#define ZSTD_STATIC_LINKING_ONLY // for the parameter that forces Huffman codes
#include "base/checksum.hpp"
#include "codec/frame_decoder.hpp"
#include "codec/frame_encoder.hpp"
#include "support/catch.hpp"
#include "support/frames.hpp"

#include <zstd.h>

#include <cstring>
#include <memory>
#include <random>

namespace gpu_sleep::codec {
namespace {

using test::ByteVector;

void check_zstd_reads(const ByteVector& content) {
    const auto frame = test::make_frame(content).bytes;
    CHECK(ZSTD_getFrameContentSize(frame.data(), frame.size()) == content.size());
    CHECK(ZSTD_findFrameCompressedSize(frame.data(), frame.size()) == frame.size());
    ByteVector decoded(content.size());
    const auto bytes = ZSTD_decompress(decoded.data(), decoded.size(), frame.data(), frame.size());
    INFO(ZSTD_getErrorName(bytes));
    REQUIRE(bytes == content.size());
    CHECK(decoded == content);
}

TEST_CASE("zstd reads every frame, for every kind of content and length", "[codec]") {
    for (const auto length : test::telling_lengths())
        for (const auto& content : test::contents_of(length)) check_zstd_reads(content);
    check_zstd_reads(test::normal_e4m3(k_frame_content_bytes));
    check_zstd_reads(test::halving_bytes(k_frame_content_bytes, 30));
}

TEST_CASE("zstd reads frames of all sorts of codes", "[codec]") {
    std::mt19937_64 random(7);
    for (int i = 0; i < 300; ++i) {
        const auto values = 2 + random() % 255;
        const auto stretch = 1 + random() % 7;
        ByteVector content(2000 + random() % 20'000);
        for (auto& byte : content) {
            auto part = static_cast<double>(random() >> 11) * 0x1p-53;
            for (auto n = stretch; n > 0; --n) part *= static_cast<double>(random() >> 11) * 0x1p-53 + 0.3;
            byte = static_cast<std::byte>(static_cast<std::size_t>(part * static_cast<double>(values)) * 91);
        }
        check_zstd_reads(content);
    }
}

struct FreeContext {
    void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
};

/// A frame of zstd's own, of one block, with literals alone if all goes well.
ByteVector compress_literals(const ByteVector& content) {
    const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, ZSTD_minCLevel());
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);
    ByteVector frame(ZSTD_compressBound(content.size()));
    const auto bytes =
        ZSTD_compress2(context.get(), frame.data(), frame.size(), content.data(), content.size());
    REQUIRE_FALSE(ZSTD_isError(bytes));
    frame.resize(bytes);
    return frame;
}

TEST_CASE("Blocks that zstd wrote are read: its tree, its streams", "[codec]") {
    unsigned read = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const auto content = seed % 2 == 0 ? test::normal_e4m3(k_block_bytes, seed)
                                           : test::halving_bytes(k_block_bytes, 11, seed);
        auto frame = compress_literals(content);
        // zstd writes the size of so little content in two bytes, and this profile in four.
        constexpr std::ptrdiff_t k_size_at = 5;
        REQUIRE(frame[4] == std::byte{0x60});
        const auto size = static_cast<std::uint32_t>(content.size());
        frame[4] = std::byte{0xA0};
        frame.insert(frame.begin() + k_size_at, 2, std::byte{0});
        std::memcpy(&frame[k_size_at], &size, sizeof(size));
        const auto decoder = FrameDecoder::open(frame);
        if (!decoder || decoder->blocks()[0].kind() != BlockKind::coded) continue; // with matches in it
        ByteVector decoded(content.size());
        REQUIRE(decoder->decode(decoded));
        CHECK(decoded == content);
        ++read;
    }
    CHECK(read >= 5);
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
