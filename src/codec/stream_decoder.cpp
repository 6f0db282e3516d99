// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams side by side, because each waits most of the time for what it looked up last: four with several
// values for each look-up where codes are short, eight with a single value where they are long.

#include "codec/stream_decoder.hpp"

#include "codec/bits.hpp"
#include "codec/frame_layout.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace gpu_sleep::codec {
namespace {

constexpr unsigned k_max_values = 6;
constexpr unsigned k_count_shift = 48;
constexpr unsigned k_bits_shift = 56;

constexpr std::size_t k_lookups = 5; // between two refills: they read 55 bits of at least 56
constexpr std::ptrdiff_t k_round_input = 7;
constexpr auto k_one_round_output = static_cast<std::ptrdiff_t>(k_lookups);
constexpr auto k_many_round_output = static_cast<std::ptrdiff_t>(k_lookups * k_max_values);
constexpr std::ptrdiff_t k_overwrite = 8; // storing many values writes more than counts

/// A look-up of several values costs twice that of one: they pay while codes take fewer bits on average.
/// Measured by codec_bench.
constexpr double k_max_mean_of_many = 5.5;

constexpr std::size_t k_whole_quarter = k_block_bytes / k_streams;
constexpr std::integral_constant<std::size_t, k_whole_quarter> k_whole{};

/// Bits that a code takes on average, if contents are as the code expects.
double mean_bits(const CodeLengths& lengths) noexcept {
    double mean = 0;
    for (const auto bits : lengths)
        if (bits > 0) mean += static_cast<double>(bits) / static_cast<double>(1U << bits);
    return mean;
}

/// The bits before bit `end` of a stream of at least 8 bytes, from the highest down; then zeros.
std::uint64_t word_before(const std::byte* begin, std::ptrdiff_t end) noexcept {
    if (end >= 64) return load<std::uint64_t>(begin + (end - 57) / 8) << (7 - (end - 57) % 8);
    return end == 0 ? 0 : load<std::uint64_t>(begin) << (64 - end);
}

} // namespace

/// Streams that are read from their ends, side by side. A word holds bits not yet read from the highest down,
/// below them a single 1, and zeros for the bits that were read.
template <std::size_t Count>
struct StreamDecoder::Streams {
    std::array<const std::byte*, Count> begin;
    std::array<const std::byte*, Count> at; ///< where the word was loaded from
    std::array<std::uint64_t, Count> word;
    std::array<std::byte*, Count> out;
    std::array<std::byte*, Count> end;

    /// Takes the streams of a block as those from `first` on. False if one has no end.
    [[nodiscard]] bool open(const CodedBlock& block, std::size_t first) noexcept {
        const auto* from = block.streams;
        auto* to = block.out.data();
        for (std::size_t i = 0; i < k_streams; ++i) {
            const auto bytes = block.stream_bytes[i];
            const auto contents = stream_content_bytes(block.out.size(), i);
            const auto marker = std::to_integer<std::uint32_t>(from[bytes - 1]);
            if (marker == 0) return false;
            const auto* last = from + bytes - sizeof(std::uint64_t);
            begin[first + i] = from;
            at[first + i] = last;
            word[first + i] = (load<std::uint64_t>(last) | 1) << (8 - highest_bit(marker));
            out[first + i] = to;
            end[first + i] = to + contents;
            from += bytes;
            to += contents;
        }
        return true;
    }

    /// Bits of stream i that are not yet read.
    [[nodiscard]] std::ptrdiff_t left(std::size_t i) const noexcept {
        return (at[i] - begin[i]) * 8 + 64 - std::countr_zero(word[i]);
    }

    /// How many rounds stay within the streams and within their contents, whatever is read.
    [[nodiscard]] std::ptrdiff_t safe_rounds(std::ptrdiff_t round_output,
                                             std::ptrdiff_t overwrite) const noexcept {
        auto input = std::numeric_limits<std::ptrdiff_t>::max();
        auto output = input;
        for (std::size_t i = 0; i < Count; ++i) {
            input = std::min(input, at[i] - begin[i]);
            output = std::min(output, end[i] - out[i]);
        }
        return std::min(input / k_round_input, (output - overwrite) / round_output);
    }
};

namespace {

/// Moves a word on to the bits that were not yet read.
[[gnu::always_inline]] inline void refill(const std::byte*& at, std::uint64_t& word) noexcept {
    // std::countr_zero would ask whether the word is 0, but it has its 1.
    const auto read = static_cast<unsigned>(__builtin_ctzll(word));
    at -= std::size_t{read / 8};
    word = (load<std::uint64_t>(at) | 1) << (read % 8);
}

} // namespace

StreamDecoder::StreamDecoder(const CodeLengths& lengths) noexcept
    : has_many_(mean_bits(lengths) < k_max_mean_of_many) {
    const auto first = first_numbers(lengths);
    for (std::size_t value = 0; value < lengths.size(); ++value) {
        if (lengths[value] == 0) continue;
        const auto numbers = std::size_t{1} << (k_max_code_bits - lengths[value]);
        std::fill_n(one_.begin() + first[value], numbers, static_cast<OneCode>(value << 8 | lengths[value]));
    }
    if (!has_many_) return;
    for (std::size_t number = 0; number < k_numbers; ++number) many_[number] = codes_of(number);
}

StreamDecoder::CodesInFront StreamDecoder::codes_of(std::size_t number) const noexcept {
    CodesInFront codes = 0;
    unsigned bits = 0;
    unsigned count = 0;
    while (count < k_max_values) {
        const unsigned next = one_[number << bits & (k_numbers - 1)];
        if (bits + (next & 0xFF) > k_max_code_bits) break;
        codes |= CodesInFront{next >> 8} << (8 * count++);
        bits += next & 0xFF;
    }
    return codes | CodesInFront{count} << k_count_shift | CodesInFront{bits} << k_bits_shift;
}

/// The contents of each stream begin `distance` behind those of the one before.
template <std::size_t Count>
void StreamDecoder::read_one_each(Streams<Count>& streams, std::ptrdiff_t rounds,
                                  auto distance) const noexcept {
    auto at = streams.at; // copies: nothing that is stored can change them
    auto word = streams.word;
    auto* out = streams.out[0];
    const auto* const end = out + rounds * k_one_round_output;
    for (; out != end; out += k_lookups) {
        unrolled<Count>([&](auto i) { refill(at[i], word[i]); });
        // All values of a stream together: stores to many lines of the cache in turn would be slower.
        unrolled<Count>([&](auto i) {
            unrolled<k_lookups>([&](auto lookup) {
                const unsigned code = one_[word[i] >> (64 - k_max_code_bits)];
                out[i * distance + lookup] = static_cast<std::byte>(code >> 8);
                word[i] <<= code & 63;
            });
        });
    }
    streams.at = at;
    streams.word = word;
    for (auto& to : streams.out) to += rounds * k_one_round_output;
}

template <std::size_t Count>
bool StreamDecoder::read_to_end(Streams<Count>& streams, auto distance) const noexcept {
    while (true) {
        const auto rounds = streams.safe_rounds(k_one_round_output, 0);
        if (rounds <= 0) return finish(streams);
        read_one_each(streams, rounds, distance);
    }
}

void StreamDecoder::read_many_each(Streams<k_streams>& streams, std::ptrdiff_t rounds) const noexcept {
    auto at = streams.at;
    auto word = streams.word;
    auto out = streams.out;
    for (; rounds > 0; --rounds) {
        unrolled<k_streams>([&](auto i) { refill(at[i], word[i]); });
        unrolled<k_lookups>([&](auto) {
            unrolled<k_streams>([&](auto i) {
                const auto codes = many_[word[i] >> (64 - k_max_code_bits)];
                store(out[i], codes);
                out[i] += codes >> k_count_shift & 0xFF;
                word[i] <<= codes >> k_bits_shift;
            });
        });
    }
    streams.at = at;
    streams.word = word;
    streams.out = out;
}

/// Reads what is left, a value at a time. False unless each stream ends just where its values do.
template <std::size_t Count>
bool StreamDecoder::finish(const Streams<Count>& streams) const noexcept {
    for (std::size_t i = 0; i < Count; ++i) {
        auto left = streams.left(i);
        for (auto* out = streams.out[i]; out != streams.end[i]; ++out) {
            if (left < 0) return false;
            const unsigned code = one_[word_before(streams.begin[i], left) >> (64 - k_max_code_bits)];
            *out = static_cast<std::byte>(code >> 8);
            left -= static_cast<std::ptrdiff_t>(code & 0xFF);
        }
        if (left != 0) return false;
    }
    return true;
}

bool StreamDecoder::decode(const CodedBlock& block) const noexcept {
    Streams<k_streams> streams;
    if (!streams.open(block, 0)) return false;
    if (!has_many_) return read_to_end(streams, stream_content_bytes(block.out.size(), 0));
    while (true) {
        const auto rounds = streams.safe_rounds(k_many_round_output, k_overwrite);
        if (rounds <= 0) return finish(streams);
        read_many_each(streams, rounds);
    }
}

bool StreamDecoder::decode(const CodedBlock& first, const CodedBlock& second) const noexcept {
    if (has_many_) return decode(first) && decode(second);
    Streams<2 * k_streams> streams;
    return streams.open(first, 0) && streams.open(second, k_streams) && read_to_end(streams, k_whole);
}

} // namespace gpu_sleep::codec
