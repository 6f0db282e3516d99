// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds arbitrary bytes to the decoder of chunks, and compares contents with what is decoded after encoding
// them.

#include "codec/chunk.hpp"

#include <vector>

using namespace gpu_sleep;

namespace {

void require(bool condition) {
    if (!condition) __builtin_trap();
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
    if (data[0] % 2 == 0)
        try_chunk(rest);
    else
        try_content(rest);
    return 0;
}
