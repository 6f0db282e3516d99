// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams with long and with short codes, one block and two at a time, whole and of rubbish.

#include "codec/stream_decoder.hpp"
#include "support/catch.hpp"
#include "support/frames.hpp"

#include <algorithm>
#include <memory>
#include <numeric>

namespace gpu_sleep::codec {
namespace {

using test::ByteVector;

constexpr auto k_whole_block = static_cast<std::size_t>(k_block_bytes);
constexpr std::byte k_mark{0xA7};

/// Two blocks of which the first takes many more bits than the second, though they have one code.
ByteVector uneven_halves(ByteVector content) {
    const auto histogram = histogram_of(content);
    const auto count = [&](std::byte value) { return histogram[std::to_integer<std::size_t>(value)]; };
    std::sort(content.begin(), content.end(), [&](std::byte a, std::byte b) { return count(a) < count(b); });
    return content;
}

/// Contents whose codes are long, and contents whose codes are short: each has its way of reading.
std::vector<ByteVector> two_blocks() {
    const auto bytes = 2 * k_whole_block;
    return {test::normal_e4m3(bytes), test::halving_bytes(bytes, 12), uneven_halves(test::normal_e4m3(bytes)),
            uneven_halves(test::halving_bytes(bytes, 12))};
}

/// A block whose streams lie in memory of their own, so that the sanitizer sees every read outside of them.
struct Block {
    ByteVector streams;
    std::array<std::uint16_t, k_streams> stream_bytes{};

    [[nodiscard]] CodedBlock to(std::span<std::byte> out) const {
        return {streams.data(), stream_bytes, out};
    }
};

Block block_of(const test::Frame& frame, std::size_t index) {
    const auto& entry = frame.blocks[index];
    REQUIRE(entry.kind() == BlockKind::coded);
    const auto begin = frame.bytes.begin() + entry.offset();
    const auto bytes = std::accumulate(entry.stream_bytes.begin(), entry.stream_bytes.end(), 0);
    return {ByteVector(begin, begin + bytes), entry.stream_bytes};
}

/// Room for contents, between bytes that must stay as they are.
class Room {
public:
    explicit Room(std::size_t bytes) : bytes_(bytes + 2 * k_guard, k_mark) {}
    [[nodiscard]] std::span<std::byte> contents() {
        return std::span(bytes_).subspan(k_guard, bytes_.size() - 2 * k_guard);
    }
    [[nodiscard]] bool is_kept() const {
        const auto is_mark = [](std::byte b) { return b == k_mark; };
        return std::all_of(bytes_.begin(), bytes_.begin() + k_guard, is_mark) &&
               std::all_of(bytes_.end() - k_guard, bytes_.end(), is_mark);
    }

private:
    static constexpr std::ptrdiff_t k_guard = 64;
    ByteVector bytes_;
};

TEST_CASE("Streams: two blocks are decoded together as each on its own", "[codec]") {
    for (const auto& content : two_blocks()) {
        const auto frame = test::make_frame(content);
        const auto decoder = std::make_unique<StreamDecoder>(make_code_lengths(histogram_of(content)));
        const auto first = block_of(frame, 0);
        const auto second = block_of(frame, 1);
        Room together(content.size());
        Room alone(content.size());
        const auto both = together.contents();
        const auto each = alone.contents();
        REQUIRE(decoder->decode(first.to(both.first(k_whole_block)), second.to(both.last(k_whole_block))));
        REQUIRE(decoder->decode(first.to(each.first(k_whole_block))));
        REQUIRE(decoder->decode(second.to(each.last(k_whole_block))));
        CHECK(std::equal(both.begin(), both.end(), content.begin()));
        CHECK(std::equal(each.begin(), each.end(), content.begin()));
    }
}

TEST_CASE("Streams: damage to any stream of two blocks is noticed", "[codec]") {
    for (const auto& content : two_blocks()) {
        const auto frame = test::make_frame(content);
        const auto decoder = std::make_unique<StreamDecoder>(make_code_lengths(histogram_of(content)));
        const std::array whole = {block_of(frame, 0), block_of(frame, 1)};
        Room room(content.size());
        const auto out = room.contents();
        const auto is_refused = [&](const std::array<Block, 2>& blocks) {
            return !decoder->decode(blocks[0].to(out.first(k_whole_block)),
                                    blocks[1].to(out.last(k_whole_block)));
        };
        for (std::size_t i = 0; i < 2 * k_streams; ++i) {
            const auto& sizes = whole[i / k_streams].stream_bytes;
            const auto begin =
                std::accumulate(sizes.begin(), sizes.begin() + i % k_streams, std::ptrdiff_t{0});
            const auto end = begin + sizes[i % k_streams];
            auto endless = whole; // perhaps after a marker in the highest bit, where one is easily overlooked
            auto& block = endless[i / k_streams];
            block.streams.insert(block.streams.begin() + end, std::byte{0});
            ++block.stream_bytes[i % k_streams];
            CHECK(is_refused(endless));
            auto too_short = whole; // the longest code, again and again
            auto& streams = too_short[i / k_streams].streams;
            std::fill(streams.begin() + begin, streams.begin() + end, std::byte{0});
            streams[static_cast<std::size_t>(end) - 1] = std::byte{1};
            CHECK(is_refused(too_short));
            CHECK(room.is_kept());
        }
    }
}

} // namespace
} // namespace gpu_sleep::codec
