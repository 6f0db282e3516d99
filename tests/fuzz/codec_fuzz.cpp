// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds arbitrary bytes to the decoders of frames and chunks, and compares frames with what is decoded after
// encoding it again.

#include "codec/chunk.hpp"
#include "codec/frame_decoder.hpp"
#include "codec/frame_encoder.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

using namespace gpu_sleep;

namespace {

void require(bool condition) {
    if (!condition) __builtin_trap();
}

void try_frame(std::span<const std::byte> frame) {
    const auto decoder = codec::FrameDecoder::open(frame);
    if (!decoder) return;
    std::vector<std::byte> content(decoder->content_bytes());
    if (!decoder->decode(content)) return;
    std::vector<std::byte> again(codec::frame_bound(content.size()));
    std::vector<codec::BlockEntry> blocks(codec::block_count(content.size()));
    again.resize(codec::encode_frame(content, again, blocks));
    again.shrink_to_fit();
    const auto second = codec::FrameDecoder::open(again);
    require(second.has_value() && second->blocks() == blocks);
    std::vector<std::byte> decoded(content.size());
    require(second->decode(decoded).has_value() && decoded == content);
}

void try_chunk(std::span<const std::byte> bytes) {
    constexpr std::size_t k_head = 4;
    if (bytes.size() < k_head) return;
    const auto number = [&](std::size_t i) { return std::to_integer<std::uint8_t>(bytes[i]); };
    std::vector<std::byte> content(std::size_t{number(2)} << 8 | number(3));
    codec::ChunkDecoder decoder;
    static_cast<void>(decoder.decode({number(0), number(1)}, bytes.subspan(k_head), content));
}

/// Contents of any kind come back.
void try_content(std::span<const std::byte> content) {
    if (content.empty() || content.size() > codec::k_chunk_bytes) return;
    codec::ChunkEncoder encoder;
    std::vector<std::byte> out(codec::ChunkEncoder::bound(content.size()));
    const auto encoded = *encoder.encode(content, out);
    if (encoded.shape.width == 0) return;
    codec::ChunkDecoder decoder;
    std::vector<std::byte> decoded(content.size());
    require(decoder.decode(encoded.shape, std::span(out).first(encoded.bytes), decoded).has_value());
    require(std::equal(decoded.begin(), decoded.end(), content.begin()));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    if (bytes.empty()) return 0;
    const auto rest = bytes.subspan(1);
    switch (data[0] % 3) {
    case 0: try_frame(rest); break;
    case 1: try_chunk(rest); break;
    default: try_content(rest); break;
    }
    return 0;
}
