// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading frames: the walk over the headers, the tables, and four streams at a time.

#include "codec/bits.hpp"
#include "codec/frame_layout.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace gpu_sleep::codec {
namespace {

constexpr std::size_t k_numbers = std::size_t{1} << k_longest_code_bits;

/// All whole codes at the front of a number of k_longest_code_bits bits, up to six: their values from the
/// lowest byte on, how many they are, and how many bits they take, in the two highest bytes.
using CodesInFront = std::uint64_t;
constexpr unsigned k_most_values = 6;
constexpr unsigned k_count_shift = 48;
constexpr unsigned k_bits_shift = 56;

Error frame_damaged(std::string_view what) {
    return make_error(ErrorCode::damaged, "a compressed frame is damaged: {}", what);
}

/// Streams that are read from their ends, side by side. A word holds bits not yet read from the highest down,
/// below them a single 1, and zeros for the bits that were read.
struct Streams {
    std::array<const std::byte*, k_streams> begin;
    std::array<const std::byte*, k_streams> at; ///< where the word was loaded from
    std::array<std::uint64_t, k_streams> word;
    std::array<std::byte*, k_streams> out;
    std::array<std::byte*, k_streams> end;

    /// Bits of stream i that are not yet read.
    [[nodiscard]] std::ptrdiff_t left(std::size_t i) const noexcept {
        return (at[i] - begin[i]) * 8 + 64 - std::countr_zero(word[i]);
    }
};

constexpr std::size_t k_lookups = 5; // between two refills: they read 55 bits of at least 56
constexpr std::ptrdiff_t k_round_output = k_lookups * k_most_values;
constexpr std::ptrdiff_t k_overwrite = 8; // a store writes more than counts

} // namespace

struct FrameDecoder::Tables {
    /// What a number of k_longest_code_bits bits begins with.
    struct OneCode {
        std::uint8_t value = 0;
        std::uint8_t bits = 0;
    };
    std::array<OneCode, k_numbers> one;
    std::array<CodesInFront, k_numbers> many;

    explicit Tables(const CodeLengths& lengths) noexcept {
        const auto first = first_numbers(lengths);
        for (std::size_t value = 0; value < lengths.size(); ++value) {
            if (lengths[value] == 0) continue;
            const auto numbers = std::size_t{1} << (k_longest_code_bits - lengths[value]);
            std::fill_n(one.begin() + first[value], numbers,
                        OneCode{static_cast<std::uint8_t>(value), lengths[value]});
        }
        for (std::size_t number = 0; number < k_numbers; ++number) many[number] = codes_of(number);
    }

    [[nodiscard]] CodesInFront codes_of(std::size_t number) const noexcept {
        CodesInFront codes = 0;
        unsigned bits = 0;
        unsigned count = 0;
        while (count < k_most_values) {
            const auto next = one[number << bits & (k_numbers - 1)];
            if (bits + next.bits > k_longest_code_bits) break;
            codes |= CodesInFront{next.value} << (8 * count++);
            bits += next.bits;
        }
        return codes | CodesInFront{count} << k_count_shift | CodesInFront{bits} << k_bits_shift;
    }

    /// Reads what is left of stream i, a value at a time. False unless it ends just where its values do.
    [[nodiscard]] bool finish(const Streams& streams, std::size_t i) const noexcept {
        auto left = streams.left(i);
        for (auto* out = streams.out[i]; out != streams.end[i]; ++out) {
            if (left < 0) return false;
            const auto code = one[word_before(streams.begin[i], left) >> (64 - k_longest_code_bits)];
            *out = static_cast<std::byte>(code.value);
            left -= code.bits;
        }
        return left == 0;
    }

    /// The bits before bit `end` of a stream of at least 8 bytes, from the highest down; then zeros.
    static std::uint64_t word_before(const std::byte* begin, std::ptrdiff_t end) noexcept {
        if (end >= 64) return load<std::uint64_t>(begin + (end - 57) / 8) << (7 - (end - 57) % 8);
        return end == 0 ? 0 : load<std::uint64_t>(begin) << (64 - end);
    }

    /// How many rounds stay within the streams and within their contents, whatever is read.
    static std::ptrdiff_t safe_rounds(const Streams& streams) noexcept {
        constexpr std::ptrdiff_t k_round_input = 7;
        auto rounds = std::numeric_limits<std::ptrdiff_t>::max();
        for (std::size_t i = 0; i < k_streams; ++i) {
            rounds = std::min(rounds, (streams.at[i] - streams.begin[i]) / k_round_input);
            rounds = std::min(rounds, (streams.end[i] - streams.out[i] - k_overwrite) / k_round_output);
        }
        return rounds;
    }

    void run(Streams& streams, std::ptrdiff_t rounds) const noexcept {
        auto at = streams.at; // copies: nothing that is stored can change them
        auto word = streams.word;
        auto out = streams.out;
        for (; rounds > 0; --rounds) {
            unrolled<k_streams>([&](auto i) {
                const auto read = static_cast<unsigned>(std::countr_zero(word[i]));
                at[i] -= read / 8;
                word[i] = (load<std::uint64_t>(at[i]) | 1) << (read % 8);
            });
            unrolled<k_lookups>([&](auto) {
                unrolled<k_streams>([&](auto i) {
                    const auto codes = many[word[i] >> (64 - k_longest_code_bits)];
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

    [[nodiscard]] bool decode(Streams& streams) const noexcept {
        for (auto rounds = safe_rounds(streams); rounds > 0; rounds = safe_rounds(streams))
            run(streams, rounds);
        for (std::size_t i = 0; i < k_streams; ++i)
            if (!finish(streams, i)) return false;
        return true;
    }
};

FrameDecoder::FrameDecoder(std::span<const std::byte> frame) noexcept : frame_(frame) {}
FrameDecoder::FrameDecoder(FrameDecoder&&) noexcept = default;
FrameDecoder& FrameDecoder::operator=(FrameDecoder&&) noexcept = default;
FrameDecoder::~FrameDecoder() = default;

namespace {

/// Walks over the block headers of a frame.
class FrameWalk {
public:
    explicit FrameWalk(std::span<const std::byte> frame) noexcept : frame_(frame) {}

    [[nodiscard]] Result<void> header() {
        if (frame_.size() < k_frame_header_bytes) return frame_damaged("it is cut");
        if (load<std::uint32_t>(frame_.data()) != k_magic)
            return frame_damaged("it does not begin as a frame");
        if (load<std::uint8_t>(frame_.data() + 4) != k_descriptor)
            return frame_damaged("it has features that are not used here");
        content_bytes = load<std::uint32_t>(frame_.data() + 5);
        if (content_bytes == 0 || content_bytes > k_frame_content_bytes)
            return frame_damaged("its content has a wrong size");
        at_ = k_frame_header_bytes;
        return {};
    }

    [[nodiscard]] Result<BlockEntry> block(std::size_t contents, bool is_last) {
        if (frame_.size() - at_ < k_block_header_bytes) return frame_damaged("it is cut");
        const auto header = load_bytes(frame_.data() + at_, k_block_header_bytes);
        at_ += k_block_header_bytes;
        if ((header & 1) != (is_last ? 1U : 0U))
            return frame_damaged("its blocks are not as many as they should");
        const auto size = static_cast<std::size_t>(header >> 3);
        const auto type = static_cast<ZstdBlock>(header >> 1 & 3);
        if (type == ZstdBlock::compressed) return compressed(contents, size);
        const bool is_raw = type == ZstdBlock::raw;
        if ((!is_raw && type != ZstdBlock::repeated) || size != contents)
            return frame_damaged("a block has a wrong size or type");
        const auto bytes = is_raw ? size : 1;
        if (frame_.size() - at_ < bytes) return frame_damaged("it is cut");
        const BlockEntry entry{make_place(is_raw ? BlockKind::raw : BlockKind::repeated, at_), {}};
        at_ += bytes;
        return entry;
    }

    [[nodiscard]] bool at_end() const noexcept { return at_ == frame_.size(); }

    Bytes content_bytes = 0;
    std::optional<CodeLengths> lengths; ///< once a tree was met

private:
    [[nodiscard]] Result<BlockEntry> compressed(std::size_t contents, std::size_t size) {
        if (frame_.size() - at_ < size) return frame_damaged("it is cut");
        const auto block = frame_.subspan(at_, size);
        const auto block_at = std::exchange(at_, at_ + size);
        if (contents < k_least_coded_bytes || size >= contents || size <= k_literals_header_bytes)
            return frame_damaged("a block has a wrong size or type");
        std::uint64_t header = 0;
        std::memcpy(&header, block.data(), k_literals_header_bytes);
        const auto literals = header >> 22;
        if ((header >> 2 & 3) != k_size_format || (header >> 4 & 0x3FFFF) != contents ||
            k_literals_header_bytes + literals + k_sequences_bytes != size || block.back() != std::byte{0})
            return frame_damaged("a block is not of literals alone");
        auto rest = block.subspan(k_literals_header_bytes, literals);
        const auto type = static_cast<Literals>(header & 3);
        if (type != (lengths ? Literals::treeless : Literals::with_tree))
            return frame_damaged("it has not one tree, in the first block that is coded");
        if (!lengths) {
            const auto tree = read_tree(rest);
            if (!tree) return frame_damaged("its tree is not valid");
            lengths = tree->lengths;
            rest = rest.subspan(tree->bytes);
        }
        return streams(block_at + static_cast<std::size_t>(rest.data() - block.data()), rest);
    }

    /// `rest` is the jump table and the streams, `at` its place in the frame.
    [[nodiscard]] static Result<BlockEntry> streams(std::size_t at, std::span<const std::byte> rest) {
        constexpr std::size_t k_least_stream_bytes = 8;
        if (rest.size() < k_jump_table_bytes) return frame_damaged("a block is cut");
        BlockEntry entry{make_place(BlockKind::coded, at + k_jump_table_bytes), {}};
        auto left = rest.size() - k_jump_table_bytes;
        for (std::size_t i = 0; i < k_streams; ++i) {
            const auto is_last = i + 1 == k_streams;
            const std::size_t bytes = is_last ? left : load<std::uint16_t>(rest.data() + 2 * i);
            if (bytes < k_least_stream_bytes || bytes > left)
                return frame_damaged("a stream has a wrong size");
            entry.stream_bytes[i] = static_cast<std::uint16_t>(bytes);
            left -= bytes;
        }
        return entry;
    }

    std::span<const std::byte> frame_;
    std::size_t at_ = 0;
};

std::size_t content_of_block(Bytes content_bytes, std::size_t index) noexcept {
    return static_cast<std::size_t>(std::min(k_block_bytes, content_bytes - index * k_block_bytes));
}

} // namespace

Result<FrameDecoder> FrameDecoder::open(std::span<const std::byte> frame) {
    FrameWalk walk(frame);
    GPU_SLEEP_TRY(walk.header());
    FrameDecoder decoder(frame);
    decoder.content_bytes_ = walk.content_bytes;
    const auto count = block_count(walk.content_bytes);
    decoder.blocks_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        const auto entry = walk.block(content_of_block(walk.content_bytes, i), i + 1 == count);
        if (!entry) return entry.error();
        decoder.blocks_.push_back(*entry);
    }
    if (!walk.at_end()) return frame_damaged("something follows it");
    if (walk.lengths) {
        decoder.lengths_ = *walk.lengths;
        decoder.tables_ = std::make_unique<Tables>(*walk.lengths);
    }
    return decoder;
}

Result<void> FrameDecoder::decode_block(std::size_t index, std::span<std::byte> out) const {
    if (index >= blocks_.size() || out.size() != content_of_block(content_bytes_, index))
        return make_error(ErrorCode::internal, "a block is decoded to where it does not fit");
    const auto& entry = blocks_[index];
    const auto* from = frame_.data() + entry.offset();
    switch (entry.kind()) {
    case BlockKind::raw: std::memcpy(out.data(), from, out.size()); return {};
    case BlockKind::repeated: std::memset(out.data(), std::to_integer<int>(*from), out.size()); return {};
    case BlockKind::coded: break;
    }
    Streams streams{};
    auto* to = out.data();
    for (std::size_t i = 0; i < k_streams; ++i) {
        const auto bytes = entry.stream_bytes[i];
        const auto contents = stream_content_bytes(out.size(), i);
        const auto marker = std::to_integer<std::uint32_t>(from[bytes - 1]);
        if (marker == 0) return frame_damaged("a stream has no end");
        const auto* last = from + bytes - sizeof(std::uint64_t);
        streams.begin[i] = from;
        streams.at[i] = last;
        streams.word[i] = (load<std::uint64_t>(last) | 1) << (8 - highest_bit(marker));
        streams.out[i] = to;
        streams.end[i] = to + contents;
        from += bytes;
        to += contents;
    }
    if (!tables_->decode(streams)) return frame_damaged("a stream does not end where its contents do");
    return {};
}

Result<void> FrameDecoder::decode(std::span<std::byte> out) const {
    if (out.size() != content_bytes_)
        return make_error(ErrorCode::internal, "a frame is decoded to where it does not fit");
    for (std::size_t i = 0; i < blocks_.size(); ++i)
        GPU_SLEEP_TRY(decode_block(i, out.subspan(i * static_cast<std::size_t>(k_block_bytes),
                                                  content_of_block(content_bytes_, i))));
    return {};
}

} // namespace gpu_sleep::codec
