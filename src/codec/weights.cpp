// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// FSE with two states that take turns, in tables of at most 64 states, over the dozen weights there are.

#include "codec/weights.hpp"

#include "codec/bits.hpp"

#include <algorithm>

namespace gpu_sleep::codec {
namespace {

constexpr unsigned k_min_log = 5;
constexpr unsigned k_max_log = 6; // RFC 8878, 4.2.1.2
constexpr unsigned k_max_states = 1U << k_max_log;
constexpr unsigned k_kinds = k_max_weight + 1;

/// How many states each weight has; -1 stands for one state with probability below 1.
using Shares = std::array<int, k_kinds>;

/// The weight of each state.
using Spread = std::array<std::uint8_t, k_max_states>;

Spread spread(const Shares& shares, unsigned log) noexcept {
    const auto states = 1U << log;
    Spread table{};
    auto top = states;
    for (unsigned w = 0; w < k_kinds; ++w)
        if (shares[w] == -1) table[--top] = static_cast<std::uint8_t>(w);
    unsigned at = 0;
    for (unsigned w = 0; w < k_kinds; ++w)
        for (int i = 0; i < shares[w]; ++i) {
            table[at] = static_cast<std::uint8_t>(w);
            do at = (at + (states >> 1) + (states >> 3) + 3) & (states - 1);
            while (at >= top);
        }
    return table;
}

// ---- Writing ----------------------------------------------------------------------------------------------

/// Shares of k_max_states by the counts, at least one for each that occurs.
Shares share_out(const std::array<unsigned, k_kinds>& counts, std::size_t total) noexcept {
    Shares shares{};
    int left = k_max_states;
    for (unsigned w = 0; w < k_kinds; ++w) {
        if (counts[w] == 0) continue;
        shares[w] =
            std::max(1, static_cast<int>((std::size_t{counts[w]} * k_max_states + total / 2) / total));
        left -= shares[w];
    }
    // What rounding gave or took is small beside the largest share, but it may not be taken from it alone.
    for (; left != 0; left += left < 0 ? 1 : -1)
        *std::max_element(shares.begin(), shares.end()) += left < 0 ? -1 : 1;
    return shares;
}

void write_shares(const Shares& shares, BitWriter& out) noexcept {
    out.add(k_max_log - k_min_log, 4);
    int remaining = static_cast<int>(k_max_states) + 1;
    int threshold = k_max_states;
    unsigned bits = k_max_log + 1;
    for (unsigned w = 0; remaining > 1; ++w) {
        const int value = shares[w] + 1;
        const int spare = 2 * threshold - 1 - remaining; // values below it need one bit less
        out.add(static_cast<std::uint32_t>(value >= threshold ? value + spare : value),
                value < spare ? bits - 1 : bits);
        remaining -= shares[w];
        for (; remaining < threshold; threshold >>= 1) --bits;
        if (shares[w] != 0) continue;
        unsigned zeros = 0; // more of them, after this one
        while (shares[w + 1 + zeros] == 0) ++zeros;
        w += zeros;
        for (; zeros >= 3; zeros -= 3) out.add(3, 2);
        out.add(zeros, 2);
    }
}

/// The state machine that writes one weight after the other, the last one first.
class Encoder {
public:
    explicit Encoder(const Shares& shares) noexcept {
        std::array<unsigned, k_kinds> next{};
        unsigned total = 0;
        for (unsigned w = 0; w < k_kinds; ++w) {
            next[w] = total;
            if (shares[w] == 0) continue;
            const auto share = static_cast<unsigned>(shares[w]);
            const auto most_bits = k_max_log - (share == 1 ? 0 : highest_bit(share - 1));
            moves_[w] = {(most_bits << 16) - (share << most_bits), static_cast<int>(total) - shares[w]};
            total += share;
        }
        const auto table = spread(shares, k_max_log);
        for (unsigned state = 0; state < k_max_states; ++state)
            states_[next[table[state]]++] = k_max_states + state;
    }

    /// The state to begin with: the one from which reading needs the most bits, so that a reader at the end
    /// notices.
    [[nodiscard]] unsigned first(unsigned weight) const noexcept {
        const auto& move = moves_[weight];
        const auto bits = (move.bits + (1U << 15)) >> 16;
        return states_[index(move, (bits << 16) - move.bits, bits)];
    }
    [[nodiscard]] unsigned next(unsigned state, unsigned weight, BitWriter& out) const noexcept {
        const auto& move = moves_[weight];
        const auto bits = (state + move.bits) >> 16;
        out.add(state, bits);
        return states_[index(move, state, bits)];
    }

private:
    struct Move {
        unsigned bits = 0; ///< in the upper half, with what makes the sum with a state round right in the
                           ///< lower
        int shift = 0;     ///< from the rest of a state to its place in states_
    };
    static std::size_t index(const Move& move, unsigned state, unsigned bits) noexcept {
        const int place = static_cast<int>(state >> bits) + move.shift;
        return static_cast<std::size_t>(place);
    }

    std::array<Move, k_kinds> moves_{};
    std::array<unsigned, k_max_states> states_{};
};

// ---- Reading ----------------------------------------------------------------------------------------------

struct ReadShares {
    Shares shares{};
    unsigned log = 0;
};

std::optional<ReadShares> read_shares(ForwardBits& in) noexcept {
    ReadShares result;
    result.log = in.take(4) + k_min_log;
    if (result.log > k_max_log) return std::nullopt;
    int remaining = (1 << result.log) + 1;
    int threshold = 1 << result.log;
    unsigned bits = result.log + 1;
    unsigned w = 0;
    while (remaining > 1) {
        if (w >= k_kinds || !in.ok()) return std::nullopt;
        const int spare = 2 * threshold - 1 - remaining;
        auto value = static_cast<int>(in.peek(bits));
        if ((value & (threshold - 1)) < spare) {
            value &= threshold - 1;
            in.skip(bits - 1);
        } else {
            if (value >= threshold) value -= spare;
            in.skip(bits);
        }
        const int share = value - 1;
        remaining -= share < 0 ? 1 : share;
        if (remaining < 1) return std::nullopt;
        result.shares[w++] = share;
        for (; remaining < threshold; threshold >>= 1) --bits;
        if (share != 0) continue;
        for (std::uint32_t zeros = 3; zeros == 3 && in.ok();) w += zeros = in.take(2);
    }
    if (!in.ok()) return std::nullopt;
    return result;
}

struct ReadState {
    std::uint8_t weight = 0;
    std::uint8_t bits = 0;
    std::uint8_t base = 0;
};

std::array<ReadState, k_max_states> make_read_table(const ReadShares& read) noexcept {
    const auto table = spread(read.shares, read.log);
    std::array<ReadState, k_max_states> states{};
    std::array<unsigned, k_kinds> next{};
    for (unsigned w = 0; w < k_kinds; ++w) next[w] = static_cast<unsigned>(std::abs(read.shares[w]));
    for (unsigned state = 0; state < 1U << read.log; ++state) {
        const auto number = next[table[state]]++;
        const auto bits = read.log - highest_bit(number);
        states[state] = {table[state], static_cast<std::uint8_t>(bits),
                         static_cast<std::uint8_t>((number << bits) - (1U << read.log))};
    }
    return states;
}

} // namespace

std::optional<std::size_t> write_weights(std::span<const std::uint8_t> weights,
                                         std::span<std::byte> out) noexcept {
    std::array<unsigned, k_kinds> counts{};
    for (const auto weight : weights) ++counts[weight];
    const auto kinds = std::count_if(counts.begin(), counts.end(), [](unsigned n) { return n > 0; });
    if (weights.size() < 2 || kinds < 2) return std::nullopt;
    const auto shares = share_out(counts, weights.size());
    BitWriter header(out);
    write_shares(shares, header);
    const auto header_bytes = header.finish();
    if (!header_bytes) return std::nullopt;

    const Encoder encoder(shares);
    BitWriter stream(out.subspan(*header_bytes));
    auto at = weights.size();
    std::array<unsigned, 2> states{}; // the weights at even places, those at odd places
    for (int i = 0; i < 2; ++i) {
        --at;
        states[at % 2] = encoder.first(weights[at]);
    }
    while (at > 0) {
        --at;
        states[at % 2] = encoder.next(states[at % 2], weights[at], stream);
    }
    stream.add(states[1], k_max_log);
    stream.add(states[0], k_max_log);
    stream.add(1, 1); // the marker
    const auto stream_bytes = stream.finish();
    if (!stream_bytes) return std::nullopt;
    return *header_bytes + *stream_bytes;
}

std::optional<Weights> read_weights(std::span<const std::byte> bytes) noexcept {
    ForwardBits header(bytes);
    const auto shares = read_shares(header);
    if (!shares) return std::nullopt;
    const auto table = make_read_table(*shares);
    BackwardBits stream(bytes.subspan(header.bytes()));
    std::array<std::uint32_t, 2> states{};
    for (auto& state : states) {
        const auto first = stream.take(shares->log);
        if (!stream.has_marker() || !first) return std::nullopt;
        state = *first;
    }
    Weights weights;
    for (std::size_t turn = 0;; turn ^= 1) {
        if (weights.count == weights.values.size()) return std::nullopt;
        const auto& state = table[states[turn]];
        weights.values[weights.count++] = state.weight;
        const auto more = stream.take(state.bits);
        if (more) {
            states[turn] = state.base + *more;
            continue;
        }
        // The end: the other state holds the last weight.
        if (weights.count == weights.values.size()) return std::nullopt;
        weights.values[weights.count++] = table[states[turn ^ 1]].weight;
        return weights;
    }
}

} // namespace gpu_sleep::codec
