// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading frames: the walk over the headers, and the blocks in turn.

#include "codec/frame_decoder.hpp"

#include "codec/bits.hpp"
#include "codec/frame_layout.hpp"
#include "codec/stream_decoder.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace gpu_sleep::codec {
namespace {

Error frame_damaged(std::string_view what) {
    return make_error(ErrorCode::damaged, "a compressed frame is damaged: {}", what);
}

Error stream_damaged() {
    return frame_damaged("a stream does not end where its contents do");
}

} // namespace

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
            return frame_damaged("it does not begin like a frame");
        if (load<std::uint8_t>(frame_.data() + 4) != k_descriptor)
            return frame_damaged("it has features that are not used here");
        content_bytes = load<std::uint32_t>(frame_.data() + 5);
        if (content_bytes == 0 || content_bytes > k_frame_content_bytes)
            return frame_damaged("its content has the wrong size");
        at_ = k_frame_header_bytes;
        return {};
    }

    [[nodiscard]] Result<BlockEntry> block(std::size_t contents, bool is_last) {
        if (frame_.size() - at_ < k_block_header_bytes) return frame_damaged("it is cut");
        const auto header = load_bytes(frame_.data() + at_, k_block_header_bytes);
        at_ += k_block_header_bytes;
        if ((header & 1) != (is_last ? 1U : 0U))
            return frame_damaged("it does not have as many blocks as it should");
        const auto size = static_cast<std::size_t>(header >> 3);
        const auto type = static_cast<ZstdBlock>(header >> 1 & 3);
        if (type == ZstdBlock::compressed) return compressed(contents, size);
        const bool is_raw = type == ZstdBlock::raw;
        if ((!is_raw && type != ZstdBlock::repeated) || size != contents)
            return frame_damaged("a block has the wrong size or type");
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
        if (contents < k_min_coded_bytes || size >= contents || size <= k_literals_header_bytes)
            return frame_damaged("a block has the wrong size or type");
        std::uint64_t header = 0;
        std::memcpy(&header, block.data(), k_literals_header_bytes);
        const auto literals = header >> 22;
        if ((header >> 2 & 3) != k_size_format || (header >> 4 & 0x3FFFF) != contents ||
            k_literals_header_bytes + literals + k_sequences_bytes != size || block.back() != std::byte{0})
            return frame_damaged("a block is not of literals alone");
        auto rest = block.subspan(k_literals_header_bytes, literals);
        const auto type = static_cast<Literals>(header & 3);
        if (type != (lengths ? Literals::treeless : Literals::with_tree))
            return frame_damaged("its only tree is not in its first coded block");
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
        constexpr std::size_t k_min_stream_bytes = 8;
        if (rest.size() < k_jump_table_bytes) return frame_damaged("a block is truncated");
        BlockEntry entry{make_place(BlockKind::coded, at + k_jump_table_bytes), {}};
        auto left = rest.size() - k_jump_table_bytes;
        for (std::size_t i = 0; i < k_streams; ++i) {
            const auto is_last = i + 1 == k_streams;
            const std::size_t bytes = is_last ? left : load<std::uint16_t>(rest.data() + 2 * i);
            if (bytes < k_min_stream_bytes || bytes > left)
                return frame_damaged("a stream has the wrong size");
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
        decoder.decoder_ = std::make_unique<StreamDecoder>(*walk.lengths);
    }
    return decoder;
}

Result<void> FrameDecoder::decode_block(std::size_t index, std::span<std::byte> out) const {
    if (index >= blocks_.size() || out.size() != content_of_block(content_bytes_, index))
        return make_error(ErrorCode::internal, "the output for a decoded block has the wrong size");
    const auto& entry = blocks_[index];
    const auto* from = frame_.data() + entry.offset();
    switch (entry.kind()) {
    case BlockKind::raw: std::memcpy(out.data(), from, out.size()); return {};
    case BlockKind::repeated: std::memset(out.data(), std::to_integer<int>(*from), out.size()); return {};
    case BlockKind::coded: break;
    }
    if (!decoder_->decode({from, entry.stream_bytes, out})) return stream_damaged();
    return {};
}

Result<void> FrameDecoder::decode(std::span<std::byte> out) const {
    if (out.size() != content_bytes_)
        return make_error(ErrorCode::internal, "the output for a decoded frame has the wrong size");
    const auto contents = [&](std::size_t i) {
        return out.subspan(i * static_cast<std::size_t>(k_block_bytes), content_of_block(content_bytes_, i));
    };
    const auto is_whole_and_coded = [&](std::size_t i) {
        return i < blocks_.size() && blocks_[i].kind() == BlockKind::coded &&
               content_of_block(content_bytes_, i) == k_block_bytes;
    };
    const auto coded = [&](std::size_t i) {
        return CodedBlock{frame_.data() + blocks_[i].offset(), blocks_[i].stream_bytes, contents(i)};
    };
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        if (!is_whole_and_coded(i) || !is_whole_and_coded(i + 1)) {
            GPU_SLEEP_TRY(decode_block(i, contents(i)));
            continue;
        }
        if (!decoder_->decode(coded(i), coded(i + 1))) return stream_damaged();
        ++i;
    }
    return {};
}

} // namespace gpu_sleep::codec
