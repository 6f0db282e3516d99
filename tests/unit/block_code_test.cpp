// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Coded blocks on the host: all contents come back, sizes are foretold, damage does no harm. What BLOCKS.md
// defines is checked by a decoder of its own, written from that page. tests/gpu/block_code_test.cpp compares
// the kernels with the functions that are tested here.

#include "codec/block_code.hpp"

#include "support/block_encoder.hpp"
#include "support/blocks.hpp"
#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::codec;
using namespace test;

namespace {

/// Encodes `content` by `plan`, with no byte more room than it takes, and checks what comes back.
ByteVector check_round_trip(const BlockPlan& plan, const ByteVector& content) {
    ByteVector room(2 * content.size() + 8192, std::byte{0xAB});
    const auto bytes = encode_block(plan, content, room);
    REQUIRE(bytes > 0);
    const auto rest = std::span(room).subspan(bytes);
    CHECK(test::are_equal(rest, ByteVector(rest.size(), std::byte{0xAB})));
    ByteVector exact(bytes);
    REQUIRE(encode_block(plan, content, exact) == bytes);
    CHECK(test::are_equal(exact, std::span(room).first(bytes)));
    ByteVector decoded(content.size(), std::byte{0xCD});
    REQUIRE(decode_block(plan.block_class, exact, decoded));
    CHECK(test::are_equal(decoded, content));
    ByteVector less(bytes - 1);
    CHECK(encode_block(plan, content, less) == 0);
    CHECK_FALSE(decode_block(plan.block_class, std::span(exact).first(bytes - 1), decoded));
    return exact;
}

/// The contents of a coded block, bit by bit as BLOCKS.md says.
ByteVector read_by_the_page(const ByteVector& coded) {
    const auto byte = [&](std::size_t at) { return std::to_integer<std::uint32_t>(coded.at(at)); };
    const auto word = [&](std::size_t at) {
        return byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    };
    REQUIRE(word(0) == 1);
    const auto bits = byte(12) & 7;
    const auto width = byte(12) >> 4;
    const bool is_rotated = (byte(12) & 8) != 0;
    const auto content_bytes = word(4);
    const auto tiles = content_bytes / (1024 * width);
    const auto first_tile = 128 + (4 * tiles + 127) / 128 * 128;
    const auto tile_bytes = 128 * bits + 1024 * (width - 1);
    const auto escapes = first_tile + tiles * tile_bytes;
    ByteVector content;
    for (std::uint32_t tile = 0; tile < tiles; ++tile) {
        const auto at = first_tile + tile * tile_bytes;
        const auto low = at + 128 * bits;
        std::vector<std::uint32_t> values(1024);
        auto escape = escapes + word(128 + 4 * tile);
        for (std::uint32_t plane_bit = 0; plane_bit < 1024; ++plane_bit) {
            const auto l = plane_bit / 32;
            const auto row = plane_bit % 32 / 8;
            const auto j = plane_bit % 8;
            const auto place = (row * 32 + l) * 8 + j;
            std::uint32_t code = 0;
            for (std::uint32_t bit = 0; bit < bits; ++bit)
                code |= (byte(at + 128 * bit + plane_bit / 8) >> plane_bit % 8 & 1) << bit;
            const auto top = code + 1 == 1U << bits ? byte(escape++) : byte(13 + code);
            if (width == 2)
                values[place] = top << 8 | byte(low + place);
            else
                values[((2 * row + j / 4) * 32 + l) * 4 + j % 4] = top << 24 | byte(low + place) << 16 |
                                                                   byte(low + 1024 + 2 * place + 1) << 8 |
                                                                   byte(low + 1024 + 2 * place);
        }
        for (const auto value : values) {
            const auto turned = !is_rotated ? value : value >> 1 | (value & 1) << (8 * width - 1);
            for (std::uint32_t i = 0; i < width; ++i)
                content.push_back(static_cast<std::byte>(turned >> (8 * i)));
        }
        if (tile + 1 < tiles)
            CHECK(escape == escapes + word(128 + 4 * (tile + 1)));
        else
            CHECK((escape + 3) / 4 * 4 == word(8));
    }
    return content;
}

/// A plan by a class of our choice, with the symbols that suit the contents.
BlockPlan plan_by(BlockClass block_class, const ByteVector& content) {
    auto plan = measure_block(content);
    plan.block_class = block_class;
    std::uint8_t next = 0;
    if (std::all_of(std::begin(plan.symbols), std::end(plan.symbols), [](auto s) { return s == 0; }))
        for (auto& symbol : plan.symbols) symbol = next += 7;
    return plan;
}

} // namespace

TEST_CASE("Block code: all contents come back by each class, whatever their size", "[block_code]") {
    for (const auto& [name, make] : test::block_contents()) {
        for (const std::size_t bytes : {4096, 8192, 3 * 4096, 65'536, 17 * 4096}) {
            const auto content = make(bytes);
            CAPTURE(name, bytes);
            for (unsigned i = 0; i < k_coded_classes; ++i) {
                const auto coded = check_round_trip(plan_by(coded_class(i), content), content);
                if (bytes == 3 * 4096) CHECK((read_by_the_page(coded) == content));
            }
        }
    }
}

TEST_CASE("Block code: measuring foretells the size exactly, and takes the smallest class", "[block_code]") {
    for (const auto& [name, make] : test::block_contents()) {
        for (const std::size_t bytes :
             {std::size_t{5000}, std::size_t{73 * 4096}, std::size_t{k_largest_block}}) {
            const auto content = make(bytes);
            CAPTURE(name, bytes);
            const auto plan = measure_block(content);
            if (plan.block_class == BlockClass::raw)
                CHECK(plan.coded_bytes == bytes);
            else
                CHECK(check_round_trip(plan, content).size() == plan.coded_bytes);
            if (bytes % k_coded_unit != 0) CHECK(plan.block_class == BlockClass::raw);
            for (unsigned i = 0; i < k_coded_classes && bytes % k_coded_unit == 0; ++i) {
                auto other = plan_by(coded_class(i), content);
                ByteVector room(plan.coded_bytes - 1);
                CHECK(encode_block(other, content, room) == 0);
            }
        }
    }
}

TEST_CASE("Block code: models and optimisers become as small as they can by it", "[block_code]") {
    const std::pair<std::string, double> expected[] = {
        {"bf16", 0.703},  {"bf16 of two scales", 0.755}, {"bf16 of one sign", 0.703}, {"fp16", 0.89},
        {"fp32", 0.852},  {"a first moment", 0.88},      {"a second moment", 0.88},   {"e4m3", 1},
        {"random", 1},    {"one exponent", 0.691},       {"one value", 0.691},        {"not a number", 0.691},
        {"zeros", 0.691}, {"half of it random", 0.97}};
    const auto contents = test::block_contents();
    REQUIRE(contents.size() == std::size(expected));
    for (std::size_t i = 0; i < contents.size(); ++i) {
        CAPTURE(contents[i].name);
        CHECK(contents[i].name == expected[i].first);
        const auto plan = measure_block(contents[i].make(k_largest_block));
        CHECK(plan.coded_bytes <= expected[i].second * k_largest_block);
        CHECK((plan.block_class == BlockClass::raw) == (plan.coded_bytes == k_largest_block));
    }
}

TEST_CASE("Block code: contents that change after measuring come back, or do not fit", "[block_code]") {
    const auto contents = test::block_contents();
    for (const auto& before : contents) {
        const auto plan = measure_block(before.make(65'536));
        if (plan.block_class == BlockClass::raw) continue;
        for (const auto& after : contents) {
            CAPTURE(before.name, after.name);
            const auto content = after.make(65'536);
            check_round_trip(plan, content);
            ByteVector room(plan.coded_bytes);
            const auto bytes = encode_block(plan, content, room);
            ByteVector decoded(content.size());
            if (bytes != 0) {
                CHECK(decode_block(plan.block_class, std::span(room).first(bytes), decoded));
                CHECK((decoded == content));
            }
        }
    }
}

// The address sanitizer sees what is read outside of `damaged` or written outside of `decoded`.
TEST_CASE("Block code: damage at any byte does no harm", "[block_code]") {
    std::mt19937 random(1);
    for (unsigned i = 0; i < k_coded_classes; ++i) {
        const auto content = test::bytes_of(
            4096, [&](std::size_t) { return static_cast<std::uint16_t>(0x3F00 + random() % 4096); });
        const auto coded = check_round_trip(plan_by(coded_class(i), content), content);
        for (std::size_t at = 0; at < coded.size(); ++at) {
            for (const auto flipped : {0x01, 0x80, 0xFF}) {
                auto damaged = coded;
                damaged[at] ^= static_cast<std::byte>(flipped);
                ByteVector decoded(content.size());
                const bool is_whole = decode_block(coded_class(i), damaged, decoded);
                if (at < 13) CHECK_FALSE(is_whole); // version, sizes, class
            }
        }
        for (std::size_t bytes = 0; bytes < coded.size(); bytes += 1 + random() % 64) {
            ByteVector decoded(content.size());
            const ByteVector cut(coded.begin(), coded.begin() + static_cast<std::ptrdiff_t>(bytes));
            CHECK_FALSE(decode_block(coded_class(i), cut, decoded));
        }
        for (const auto other : {content.size() - 4096, content.size() + 4096}) {
            ByteVector decoded(other);
            CHECK_FALSE(decode_block(coded_class(i), coded, decoded));
        }
    }
}

TEST_CASE("Block code: offsets that lead elsewhere are refused", "[block_code]") {
    const auto content = test::random_bytes(8192);
    const auto coded = check_round_trip(plan_by(BlockClass::half_exponent_3, content), content);
    for (std::size_t tile = 0; tile < 4; ++tile) {
        for (const std::uint32_t offset :
             {0xFFFF'FFFFU, 0x8000'0000U, static_cast<std::uint32_t>(coded.size())}) {
            auto damaged = coded;
            std::memcpy(&damaged[k_line + 4 * tile], &offset, sizeof offset);
            ByteVector decoded(content.size());
            CHECK_FALSE(decode_block(BlockClass::half_exponent_3, damaged, decoded));
        }
    }
}

TEST_CASE("Block code: the example of BLOCKS.md", "[block_code]") {
    const auto content = test::bytes_of(4096, [](std::size_t) { return std::uint16_t{0x3F80}; });
    const auto plan = measure_block(content);
    CHECK(plan.block_class == BlockClass::half_exponent_3);
    ByteVector expected(3072);
    const auto put = [&](std::size_t at, std::size_t byte) { expected[at] = static_cast<std::byte>(byte); };
    put(0, 1);
    put(5, 0x10);
    put(9, 0x0C);
    put(12, 0x2B);
    put(13, 0x7F);
    for (std::size_t i = 0; i < 30; ++i) put(14 + i, 0xFF - i);
    CHECK((check_round_trip(plan, content) == expected));
}

TEST_CASE("Block code: raw blocks are not for it", "[block_code]") {
    const auto content = test::random_bytes(4096);
    ByteVector room(8192);
    CHECK(encode_block({}, content, room) == 0);
    CHECK_FALSE(decode_block(BlockClass::raw, room, std::span(room).first(4096)));
}

TEST_CASE("Block code: what saves less than a thirty-second stays raw", "[block_code]") {
    const auto choose = [](std::uint32_t bytes) {
        std::uint32_t values[k_coded_classes] = {};
        const BlockLayout layout(coded_class(0), k_largest_block);
        values[0] = layout.escapes + layout.tiles * k_tile_values - bytes;
        return choose_class(k_largest_block, values);
    };
    constexpr auto k_least = k_largest_block - k_largest_block / 32;
    CHECK(choose(k_least) == BlockPlan{.coded_bytes = k_largest_block});
    const auto coded = choose(k_least - 4);
    CHECK(coded.block_class == coded_class(0));
    CHECK(coded.coded_bytes == k_least - 4);
}
