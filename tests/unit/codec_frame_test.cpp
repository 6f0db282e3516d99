// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frames there and back, block by block, cut, bent and made up.

#include "codec/frame_decoder.hpp"
#include "codec/frame_encoder.hpp"
#include "support/catch.hpp"
#include "support/frames.hpp"
#include "support/weights.hpp"

#include <algorithm>
#include <random>

namespace gpu_sleep::codec {
namespace {

using test::ByteVector;
using test::Frame;
using test::make_frame;

/// Decodes into the middle of memory whose ends must stay as they are.
Result<ByteVector> decode(std::span<const std::byte> frame) {
    constexpr std::size_t k_guard = 64;
    constexpr std::byte k_mark{0xA7};
    const auto decoder = FrameDecoder::open(frame);
    if (!decoder) return decoder.error();
    const auto bytes = static_cast<std::size_t>(decoder->content_bytes());
    ByteVector room(bytes + 2 * k_guard, k_mark);
    const auto decoded = decoder->decode(std::span(room).subspan(k_guard, bytes));
    for (std::size_t i = 0; i < k_guard; ++i)
        if (room[i] != k_mark || room[room.size() - 1 - i] != k_mark) FAIL("wrote outside");
    if (!decoded) return decoded.error();
    return ByteVector(room.begin() + k_guard, room.end() - k_guard);
}

void check_round_trip(const ByteVector& content) {
    const auto frame = make_frame(content);
    const auto decoded = decode(frame.bytes);
    REQUIRE(decoded);
    CHECK(*decoded == content);
    CHECK(FrameDecoder::open(frame.bytes)->blocks() == frame.blocks);
    CHECK(frame.bytes.size() <= content.size() + 9 + 3 * frame.blocks.size());
}

std::size_t count_of(const Frame& frame, BlockKind kind) {
    return static_cast<std::size_t>(std::count_if(frame.blocks.begin(), frame.blocks.end(),
                                                  [=](const BlockEntry& b) { return b.kind() == kind; }));
}

TEST_CASE("Frames: what was encoded is decoded, for every kind of content and length", "[codec]") {
    for (const auto length : test::telling_lengths())
        for (const auto& content : test::contents_of(length)) check_round_trip(content);
}

TEST_CASE("Frames: the largest one", "[codec]") {
    check_round_trip(test::normal_e4m3(k_frame_content_bytes));
    check_round_trip(test::random_bytes(k_frame_content_bytes));
}

TEST_CASE("Frames: blocks that do not pay are raw or repeated, and the tree is sent once", "[codec]") {
    ByteVector content = test::random_bytes(2 * k_block_bytes);
    const auto weights = test::normal_e4m3(3 * k_block_bytes);
    content.insert(content.end(), k_block_bytes, std::byte{9});
    content.insert(content.end(), weights.begin(), weights.end());
    content.insert(content.end(), k_block_bytes, std::byte{5});
    check_round_trip(content);
    const auto frame = make_frame(content);
    CHECK(count_of(frame, BlockKind::raw) == 2);
    CHECK(count_of(frame, BlockKind::repeated) == 2);
    CHECK(count_of(frame, BlockKind::coded) == 3);
    CHECK(frame.bytes.size() < content.size() - 2 * k_block_bytes);
}

TEST_CASE("Frames: no code is longer than 11 bits, and none could be better", "[codec]") {
    // Fibonacci's numbers make the deepest trees: without the limit these would have 24 levels.
    Histogram histogram{};
    std::uint32_t a = 1;
    std::uint32_t b = 1;
    for (std::size_t i = 0; i < 25; ++i, b = std::exchange(a, a + b)) histogram[200 - 3 * i] = b;
    const auto lengths = make_code_lengths(histogram);
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        CHECK((lengths[i] > 0) == (histogram[i] > 0));
        CHECK(lengths[i] <= k_max_code_bits);
        if (lengths[i] > 0) sum += 1U << (k_max_code_bits - lengths[i]);
    }
    CHECK(sum == 1U << k_max_code_bits);
    ByteVector content;
    for (std::size_t i = 0; i < histogram.size(); ++i)
        content.insert(content.end(), histogram[i], static_cast<std::byte>(i));
    std::shuffle(content.begin(), content.end(), std::mt19937_64(3));
    check_round_trip(content);
}

TEST_CASE("Frames: a tree is read as it was written, for all sorts of codes", "[codec]") {
    std::mt19937_64 random(5);
    unsigned written = 0;
    for (int i = 0; i < 3000; ++i) {
        Histogram histogram{};
        const auto values = 2 + random() % 255;
        const auto steepness = random() % 30;
        for (std::size_t v = 0; v < values; ++v)
            histogram[random() % (i % 2 == 0 ? 256 : values)] =
                static_cast<std::uint32_t>(1 + (random() >> (34 + random() % (steepness + 1))) % (1U << 14));
        if (std::count(histogram.begin(), histogram.end(), 0U) > 254) continue;
        const auto lengths = make_code_lengths(histogram);
        std::array<std::byte, k_tree_bound> out{};
        const auto bytes = write_tree(lengths, out);
        if (!bytes) continue;
        ++written;
        const auto tree = read_tree(out);
        REQUIRE(tree);
        CHECK(tree->bytes == *bytes);
        CHECK(tree->lengths == lengths);
    }
    CHECK(written > 2900);
}

TEST_CASE("Frames: blocks are decoded in any order, each on its own", "[codec]") {
    const auto content = test::normal_e4m3(5 * k_block_bytes + 777);
    const auto frame = make_frame(content);
    const auto decoder = FrameDecoder::open(frame.bytes);
    REQUIRE(decoder);
    for (const std::size_t i : {5, 0, 3, 3, 1, 4, 2}) {
        const auto begin = i * static_cast<std::size_t>(k_block_bytes);
        ByteVector block(std::min<std::size_t>(k_block_bytes, content.size() - begin));
        REQUIRE(decoder->decode_block(i, block));
        CHECK(std::equal(block.begin(), block.end(), content.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
    ByteVector other(17);
    CHECK(decoder->decode_block(0, other).error().code == ErrorCode::internal);
    CHECK(decoder->decode_block(6, other).error().code == ErrorCode::internal);
}

TEST_CASE("Frames: one that is cut at any byte, or longer, is refused", "[codec]") {
    auto content = test::normal_e4m3(2 * k_block_bytes);
    content.resize(content.size() + 300, std::byte{1});
    const auto frame = make_frame(content);
    for (std::size_t bytes = 0; bytes < frame.bytes.size(); ++bytes) {
        // A copy of its own, so that the sanitizer sees every read beyond the end.
        const ByteVector cut(frame.bytes.begin(), frame.bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
        const auto decoded = decode(cut);
        if (decoded || decoded.error().code != ErrorCode::damaged) FAIL("cut at " << bytes);
    }
    auto longer = frame.bytes;
    longer.push_back(std::byte{0});
    CHECK_FALSE(decode(longer));
}

TEST_CASE("Frames: any flipped bit is refused or decodes to something, within bounds", "[codec]") {
    const auto content = test::normal_e4m3(1500);
    auto frame = make_frame(content).bytes;
    for (auto& byte : frame)
        for (int bit = 0; bit < 8; ++bit) {
            const auto before = std::exchange(byte, byte ^ static_cast<std::byte>(1 << bit));
            const auto decoded = decode(frame);
            if (!decoded) CHECK(decoded.error().code == ErrorCode::damaged);
            byte = before;
        }
    CHECK(*decode(frame) == content);
}

} // namespace
} // namespace gpu_sleep::codec
