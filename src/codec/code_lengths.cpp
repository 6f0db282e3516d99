// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Histograms, package-merge, and zstd's description of a Huffman tree.

#include "codec/code_lengths.hpp"

#include "codec/bits.hpp"
#include "codec/weights.hpp"

#include <algorithm>

namespace gpu_sleep::codec {
namespace {

constexpr std::size_t k_max_items = std::size_t{2} * 256;

struct Leaf {
    std::uint32_t count;
    std::uint8_t value;
};

/// Coins of one denomination: leaves, and packages of two coins of the next smaller one, lightest first.
struct Coins {
    std::array<std::uint32_t, k_max_items> weights; ///< at most 11 times all bytes of a frame
    std::array<std::uint8_t, k_max_items> is_leaf;
    std::size_t size = 0;

    void add(std::uint32_t weight, bool leaf) noexcept {
        weights[size] = weight;
        is_leaf[size++] = leaf ? 1 : 0;
    }
};

/// Fills `coins` with the leaves and with packages of `smaller`, which may be null.
void merge(std::span<const Leaf> leaves, const Coins* smaller, Coins& coins) noexcept {
    const auto packages = smaller == nullptr ? 0 : smaller->size / 2;
    std::size_t leaf = 0;
    for (std::size_t package = 0; package < packages; ++package) {
        const auto weight = smaller->weights[2 * package] + smaller->weights[2 * package + 1];
        for (; leaf < leaves.size() && leaves[leaf].count <= weight; ++leaf)
            coins.add(leaves[leaf].count, true);
        coins.add(weight, false);
    }
    for (; leaf < leaves.size(); ++leaf) coins.add(leaves[leaf].count, true);
}

/// Weight w stands for a code of (longest + 1 - w) bits; 0 for none. The last weight is not written.
Weights weights_of(const CodeLengths& lengths) noexcept {
    const auto longest = *std::max_element(lengths.begin(), lengths.end());
    Weights weights;
    for (std::size_t value = 0; value < lengths.size(); ++value) {
        if (lengths[value] == 0) continue;
        weights.count = value;
    }
    for (std::size_t value = 0; value < weights.count; ++value)
        if (lengths[value] > 0)
            weights.values[value] = static_cast<std::uint8_t>(longest + 1 - lengths[value]);
    return weights;
}

constexpr std::uint8_t k_direct = 128; // a first byte from here on: half a byte for each weight
constexpr std::size_t k_max_direct = 128;

std::optional<Weights> read_direct(std::span<const std::byte> bytes, std::size_t count) noexcept {
    if (bytes.size() < (count + 1) / 2) return std::nullopt;
    Weights weights;
    weights.count = count;
    for (std::size_t i = 0; i < count; ++i) {
        const auto pair = std::to_integer<unsigned>(bytes[i / 2]);
        weights.values[i] = static_cast<std::uint8_t>(i % 2 == 0 ? pair >> 4 : pair & 15);
    }
    return weights;
}

/// Fills in the weight that was left out. Nothing if the weights are no complete tree.
std::optional<CodeLengths> complete(const Weights& weights) noexcept {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < weights.count; ++i) {
        if (weights.values[i] > k_max_weight) return std::nullopt;
        if (weights.values[i] > 0) sum += 1U << (weights.values[i] - 1);
    }
    if (sum == 0) return std::nullopt;
    const auto longest = highest_bit(sum) + 1;
    const auto rest = (1U << longest) - sum;
    if (longest > k_max_code_bits || !std::has_single_bit(rest)) return std::nullopt;
    CodeLengths lengths{};
    const auto set = [&](std::size_t value, unsigned weight) {
        if (weight > 0) lengths[value] = static_cast<std::uint8_t>(longest + 1 - weight);
    };
    for (std::size_t i = 0; i < weights.count; ++i) set(i, weights.values[i]);
    set(weights.count, highest_bit(rest) + 1);
    // A sum that is right has an even number of longest codes; zstd wants some.
    if (std::find(lengths.begin(), lengths.end(), longest) == lengths.end()) return std::nullopt;
    return lengths;
}

} // namespace

Histogram histogram_of(std::span<const std::byte> bytes) noexcept {
    // Several tables, because a counter that was just stored is slow to load again.
    constexpr std::size_t k_tables = 4;
    std::array<Histogram, k_tables> tables{};
    while (bytes.size() >= 8) {
        const auto eight = load<std::uint64_t>(bytes.data());
        unrolled<8>([&](auto i) { ++tables[i % k_tables][eight >> (8 * i) & 0xFF]; });
        bytes = bytes.subspan(8);
    }
    for (const auto byte : bytes) ++tables[0][std::to_integer<std::size_t>(byte)];
    Histogram sum{};
    for (const auto& table : tables)
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += table[i];
    return sum;
}

CodeLengths make_code_lengths(const Histogram& histogram) noexcept {
    std::array<Leaf, 256> buffer{};
    std::size_t count = 0;
    for (std::size_t value = 0; value < histogram.size(); ++value)
        if (histogram[value] > 0) buffer[count++] = {histogram[value], static_cast<std::uint8_t>(value)};
    const std::span<Leaf> leaves(buffer.data(), count);
    std::sort(leaves.begin(), leaves.end(), [](const Leaf& a, const Leaf& b) {
        return a.count != b.count ? a.count < b.count : a.value < b.value;
    });

    std::array<Coins, k_max_code_bits> levels; // the smallest denomination first
    for (std::size_t i = 0; i < levels.size(); ++i)
        merge(leaves, i == 0 ? nullptr : &levels[i - 1], levels[i]);
    CodeLengths lengths{};
    auto taken = 2 * count - 2;
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
        std::size_t taken_leaves = 0;
        for (std::size_t i = 0; i < taken; ++i) taken_leaves += level->is_leaf[i];
        for (std::size_t i = 0; i < taken_leaves; ++i) ++lengths[leaves[i].value];
        taken = 2 * (taken - taken_leaves);
    }
    return lengths;
}

std::optional<std::size_t> write_tree(const CodeLengths& lengths,
                                      std::span<std::byte, k_tree_bound> out) noexcept {
    const auto weights = weights_of(lengths);
    const std::span<const std::uint8_t> values(weights.values.data(), weights.count);
    const auto coded_bytes = write_weights(values, out.subspan(1, k_direct - 1));
    const auto direct_bytes = (weights.count + 1) / 2;
    if (coded_bytes && (*coded_bytes < direct_bytes || weights.count > k_max_direct)) {
        out[0] = static_cast<std::byte>(*coded_bytes);
        return 1 + *coded_bytes;
    }
    if (weights.count > k_max_direct) return std::nullopt;
    out[0] = static_cast<std::byte>(k_direct - 1 + weights.count);
    for (std::size_t i = 0; i < direct_bytes; ++i)
        out[1 + i] = static_cast<std::byte>(weights.values[2 * i] << 4 | weights.values[2 * i + 1]);
    return 1 + direct_bytes;
}

std::optional<Tree> read_tree(std::span<const std::byte> bytes) noexcept {
    if (bytes.empty()) return std::nullopt;
    const auto first = std::to_integer<std::size_t>(bytes[0]);
    const auto rest = bytes.subspan(1);
    Tree tree;
    std::optional<Weights> weights;
    if (first >= k_direct) {
        const auto count = first - (k_direct - 1);
        weights = read_direct(rest, count);
        tree.bytes = 1 + (count + 1) / 2;
    } else {
        if (first > rest.size()) return std::nullopt;
        weights = read_weights(rest.first(first));
        tree.bytes = 1 + first;
    }
    const auto lengths = weights ? complete(*weights) : std::nullopt;
    if (!lengths) return std::nullopt;
    tree.lengths = *lengths;
    return tree;
}

std::array<std::uint16_t, 256> first_numbers(const CodeLengths& lengths) noexcept {
    std::array<std::uint16_t, 256> first{};
    unsigned next = 0;
    for (auto bits = k_max_code_bits; bits > 0; --bits)
        for (std::size_t value = 0; value < lengths.size(); ++value) {
            if (lengths[value] != bits) continue;
            first[value] = static_cast<std::uint16_t>(next);
            next += 1U << (k_max_code_bits - bits);
        }
    return first;
}

} // namespace gpu_sleep::codec
