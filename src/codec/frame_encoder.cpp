// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing frames: one histogram, one tree, then a block after the other.

#include "codec/frame_encoder.hpp"

#include "codec/bits.hpp"
#include "codec/code_lengths.hpp"
#include "codec/frame_layout.hpp"

#include <algorithm>
#include <cstring>

namespace gpu_sleep::codec {
namespace {

/// For each byte value its code in the highest bits, and how many those are in the lowest.
using Codes = std::array<std::uint64_t, 256>;
constexpr std::uint64_t k_count_bits = 15;
static_assert(k_max_code_bits <= k_count_bits);

Codes make_codes(const CodeLengths& lengths) noexcept {
    const auto first = first_numbers(lengths);
    Codes codes{};
    for (std::size_t value = 0; value < codes.size(); ++value)
        if (lengths[value] > 0)
            codes[value] = std::uint64_t{first[value]} << (64 - k_max_code_bits) | lengths[value];
    return codes;
}

constexpr std::size_t k_at_once = 5; // as many codes as fit in a word with what a flush leaves
static_assert(k_at_once * k_max_code_bits + 7 < 64);

/// A stream that is being written, its last value first. The word fills from the highest bit down: what came
/// last is on top, and below what is held there is rubbish.
struct OpenStream {
    const std::byte* content;
    std::size_t left; ///< contents not yet written
    std::byte* out;
    std::uint64_t word = 0;
    std::uint64_t bits = 0; ///< in its lowest 8 bits how many are held

    [[gnu::always_inline]] void add(std::uint64_t code) noexcept {
        word = word >> (code & 63) | code;
        bits += code;
    }
    [[gnu::always_inline]] void flush() noexcept {
        const auto held = bits & 0xFF;
        store(out, word >> 1 >> (63 - held));
        out += held >> 3;
        bits = held & 7;
    }
    [[nodiscard]] std::uint64_t next(const Codes& codes, std::size_t ahead) const noexcept {
        return codes[std::to_integer<std::size_t>(content[left - 1 - ahead])];
    }
    /// Writes until what is left can be written k_at_once at a time.
    void align(const Codes& codes) noexcept {
        for (; left % k_at_once != 0; --left) {
            add(next(codes, 0));
            flush();
        }
    }
    /// Ends the stream. Returns its end.
    std::byte* close() noexcept {
        add(std::uint64_t{1} << 63 | 1);
        bits += 7; // the last byte counts though it is not full
        const auto held = (bits & 0xFF) - 7;
        store(out, word >> (64 - held));
        return out + ((held + 7) >> 3);
    }
};

/// Writes k_at_once values of each of `Count` streams, side by side, `rounds` times.
template <std::size_t Count>
void write_rounds(const Codes& codes, std::array<OpenStream, Count>& streams, std::size_t rounds) noexcept {
    auto open = streams; // a copy: nothing that is stored can change it
    for (; rounds > 0; --rounds) {
        unrolled<k_at_once>([&](auto i) {
            unrolled<Count>([&](auto s) {
                // Only the last code's count could reach into the bits that are held.
                const auto code = open[s].next(codes, i);
                open[s].word =
                    open[s].word >> (code & 63) | (i + 1 < k_at_once ? code : code & ~k_count_bits);
                open[s].bits += code;
            });
        });
        unrolled<Count>([&](auto s) {
            open[s].flush();
            open[s].left -= k_at_once;
        });
    }
    streams = open;
}

/// Most bytes of a stream, with what is overwritten behind it.
constexpr std::size_t k_stream_room =
    k_block_bytes / k_streams * k_max_code_bits / 8 + 2 * sizeof(std::uint64_t);

/// Writes two streams, one after the other, to `out`. Returns the bytes of each; a few more are overwritten.
std::array<std::size_t, 2> encode_streams(const Codes& codes, std::span<const std::byte> first,
                                          std::span<const std::byte> second, std::byte* out) noexcept {
    std::array<std::byte, k_stream_room>
        aside; // the second one's place is not known before the first is done
    std::array<OpenStream, 2> both = {OpenStream{first.data(), first.size(), out},
                                      OpenStream{second.data(), second.size(), aside.data()}};
    for (auto& stream : both) stream.align(codes);
    write_rounds(codes, both, std::min(both[0].left, both[1].left) / k_at_once);
    for (auto& stream : both) {
        std::array<OpenStream, 1> one = {stream};
        write_rounds(codes, one, stream.left / k_at_once);
        stream = one[0];
    }
    auto* const end = both[0].close();
    const auto second_bytes = static_cast<std::size_t>(both[1].close() - aside.data());
    std::memcpy(end, aside.data(), second_bytes);
    return {static_cast<std::size_t>(end - out), second_bytes};
}

class FrameWriter {
public:
    FrameWriter(std::span<const std::byte> content, std::span<std::byte> out) noexcept
        : content_(content), out_(out.data()) {}

    std::size_t write(std::span<BlockEntry> entries) noexcept {
        make_tree();
        store(out_, k_magic);
        store(out_ + 4, k_descriptor);
        store(out_ + 5, static_cast<std::uint32_t>(content_.size()));
        size_ = k_frame_header_bytes;
        for (std::size_t i = 0; i < entries.size(); ++i) {
            const auto begin = i * static_cast<std::size_t>(k_block_bytes);
            entries[i] = add_block(
                content_.subspan(begin, std::min<std::size_t>(k_block_bytes, content_.size() - begin)),
                i + 1 == entries.size());
        }
        return size_;
    }

private:
    void make_tree() noexcept {
        const auto histogram = histogram_of(content_);
        if (std::count(histogram.begin(), histogram.end(), 0U) > 254) return; // one value: nothing to code
        const auto lengths = make_code_lengths(histogram);
        const auto bytes = write_tree(lengths, tree_);
        if (!bytes) return;
        tree_bytes_ = *bytes;
        codes_ = make_codes(lengths);
        can_code_ = true;
    }

    void put_header(std::size_t at, bool is_last, ZstdBlock type, std::size_t bytes) noexcept {
        store_bytes(out_ + at,
                    static_cast<std::uint32_t>(bytes) << 3 | static_cast<std::uint32_t>(type) << 1 |
                        (is_last ? 1U : 0U),
                    k_block_header_bytes);
    }

    BlockEntry add_block(std::span<const std::byte> block, bool is_last) noexcept {
        const auto at = size_ + k_block_header_bytes;
        BlockEntry entry;
        if (std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0) {
            put_header(size_, is_last, ZstdBlock::repeated, block.size());
            out_[at] = block[0];
            size_ = at + 1;
            entry.place = make_place(BlockKind::repeated, at);
            return entry;
        }
        if (can_code_ && block.size() >= k_min_coded_bytes) {
            const auto bytes = code_block(at, block, entry);
            if (bytes < block.size()) {
                put_header(size_, is_last, ZstdBlock::compressed, bytes);
                tree_bytes_ = 0; // it is sent once
                size_ = at + bytes;
                return entry;
            }
        }
        put_header(size_, is_last, ZstdBlock::raw, block.size());
        std::memcpy(out_ + at, block.data(), block.size());
        size_ = at + block.size();
        return {make_place(BlockKind::raw, at), {}};
    }

    /// Writes a compressed block's bytes from `at` on. Returns how many.
    std::size_t code_block(std::size_t at, std::span<const std::byte> block, BlockEntry& entry) noexcept {
        const auto tree = at + k_literals_header_bytes;
        std::memcpy(out_ + tree, tree_.data(), tree_bytes_);
        const auto jump_table = tree + tree_bytes_;
        auto stream = jump_table + k_jump_table_bytes;
        entry.place = make_place(BlockKind::coded, stream);
        const auto quarter = stream_content_bytes(block.size(), 0);
        for (std::size_t i = 0; i < k_streams; i += 2) {
            const auto pair = encode_streams(
                codes_, block.subspan(i * quarter, quarter),
                block.subspan((i + 1) * quarter, stream_content_bytes(block.size(), i + 1)), out_ + stream);
            for (std::size_t j = 0; j < pair.size(); ++j) {
                entry.stream_bytes[i + j] = static_cast<std::uint16_t>(pair[j]);
                stream += pair[j];
            }
        }
        std::memcpy(out_ + jump_table, entry.stream_bytes.data(), k_jump_table_bytes);
        const auto type = tree_bytes_ > 0 ? Literals::with_tree : Literals::treeless;
        const auto header = static_cast<std::uint64_t>(type) | k_size_format << 2 |
                            std::uint64_t{block.size()} << 4 | std::uint64_t{stream - tree} << 22;
        std::memcpy(out_ + at, &header, k_literals_header_bytes);
        out_[stream] = std::byte{0}; // no sequences
        return stream + k_sequences_bytes - at;
    }

    std::span<const std::byte> content_;
    std::byte* out_;
    std::size_t size_ = 0;
    bool can_code_ = false;
    Codes codes_{};
    std::array<std::byte, k_tree_bound> tree_{};
    std::size_t tree_bytes_ = 0; ///< 0 once it was sent
};

} // namespace

std::size_t encode_frame(std::span<const std::byte> content, std::span<std::byte> out,
                         std::span<BlockEntry> entries) noexcept {
    return FrameWriter(content, out).write(entries);
}

} // namespace gpu_sleep::codec
