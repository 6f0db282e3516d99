// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Measuring and encoding blocks on the host.

#include "support/block_encoder.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>

using namespace gpu_sleep::codec;

namespace gpu_sleep::test {
namespace {

using Tops = std::array<std::uint8_t, k_tile_values>;

template <class T>
T load(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class T>
void store(void* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

/// Takes the values of a tile apart. In the tile value 8 (32 r + l) + j is one of eight that lane l has in
/// row r.
template <class Value>
void split(const std::byte* content, bool rotate, Tops& tops, std::byte* low) {
    for (unsigned i = 0; i < k_tile_values; ++i) {
        const auto row = i / 256;
        const auto lane = i / 8 % 32;
        const auto place = sizeof(Value) == 2 ? i : ((2 * row + i % 8 / 4) * 32 + lane) * 4 + i % 4;
        const auto value = std::rotl(load<Value>(content + place * sizeof(Value)), rotate ? 1 : 0);
        tops[i] = static_cast<std::uint8_t>(value >> (8 * sizeof value - 8));
        low[i] = static_cast<std::byte>(value >> (8 * sizeof value - 16));
        if constexpr (sizeof value == 4)
            store(low + k_tile_values + 2 * std::size_t{i}, static_cast<std::uint16_t>(value));
    }
}

} // namespace

BlockPlan measure_block(std::span<const std::byte> content) {
    std::array<std::uint32_t, 512> low{}; // how often nine bits are at the top of the lower half of a word
    std::array<std::uint32_t, 512> high{};
    for (std::size_t at = 0; at + 4 <= content.size(); at += 4) {
        const auto word = load<std::uint32_t>(&content[at]);
        ++low[word >> 7 & 511];
        ++high[word >> 23];
    }
    using Keys = std::array<std::uint32_t, 256>; // how often each top byte occurs, and itself
    std::array<Keys, k_coded_classes> keys{};
    std::array<std::uint32_t, k_coded_classes> values{};
    for (unsigned c = 0; c < k_coded_classes; ++c) {
        const auto of = coded_class(c);
        for (unsigned i = 0; i < 512; ++i)
            keys[c][is_rotated(of) ? i % 256 : i / 2] += (high[i] + (value_bytes(of) == 2 ? low[i] : 0)) << 8;
        for (unsigned i = 0; i < 256; ++i) keys[c][i] += i;
        std::partial_sort(keys[c].begin(), keys[c].begin() + k_symbols, keys[c].end(), std::greater<>());
        for (unsigned i = 0; i + 1 < 1U << code_bits(of); ++i) values[c] += keys[c][i] >> 8;
    }
    auto plan = choose_class(static_cast<std::uint32_t>(content.size()), values.data());
    for (unsigned c = 0; c < k_coded_classes; ++c)
        if (coded_class(c) == plan.block_class) std::copy_n(keys[c].begin(), k_symbols, plan.symbols);
    return plan;
}

std::size_t encode_block(const BlockPlan& plan, std::span<const std::byte> content,
                         std::span<std::byte> coded) {
    const auto bits = code_bits(plan.block_class);
    const auto width = value_bytes(plan.block_class);
    const BlockLayout layout(plan.block_class, static_cast<std::uint32_t>(content.size()));
    if (layout.escapes > coded.size()) return 0;
    std::array<std::uint8_t, 256> code_of{};
    code_of.fill(static_cast<std::uint8_t>((1U << bits) - 1));
    for (unsigned i = 0; i + 1 < 1U << bits; ++i) code_of[plan.symbols[i]] = static_cast<std::uint8_t>(i);

    std::fill_n(coded.begin(), layout.first_tile, std::byte{0});
    auto end = layout.escapes;
    Tops tops;
    for (std::uint32_t tile = 0; tile < layout.tiles; ++tile) {
        auto* const planes = coded.data() + layout.first_tile + tile * layout.tile_bytes;
        const auto split_tile = width == 2 ? split<std::uint16_t> : split<std::uint32_t>;
        split_tile(content.data() + std::size_t{tile} * k_tile_values * width, is_rotated(plan.block_class),
                   tops, planes + bits * k_line);
        store(&coded[k_line + 4 * tile], end - layout.escapes);
        for (unsigned lane = 0; lane < 32; ++lane) {
            std::array<std::uint32_t, 5> words{};
            for (unsigned i = 0; i < 32; ++i) {
                const auto top = tops[(i / 8 * 32 + lane) * 8 + i % 8];
                const unsigned code = code_of[top];
                for (unsigned bit = 0; bit < bits; ++bit) words[bit] |= (code >> bit & 1) << i;
                if (code + 1 < 1U << bits) continue;
                if (end < coded.size()) coded[end] = std::byte{top};
                ++end;
            }
            for (unsigned bit = 0; bit < bits; ++bit) store(planes + bit * k_line + 4 * lane, words[bit]);
        }
    }
    for (; end % 4 != 0; ++end)
        if (end < coded.size()) coded[end] = std::byte{0};
    BlockHead head{.content_bytes = static_cast<std::uint32_t>(content.size()), .plan = plan};
    head.plan.coded_bytes = end;
    store(coded.data(), head);
    return end <= coded.size() ? end : 0;
}

} // namespace gpu_sleep::test
