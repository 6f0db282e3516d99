// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frames for tests, and contents that are hard in one way or another.

#pragma once

#include "codec/frame_decoder.hpp"
#include "codec/frame_encoder.hpp"
#include "support/weights.hpp"

#include <vector>

namespace gpu_sleep::test {

struct Frame {
    ByteVector bytes;
    std::vector<codec::BlockEntry> blocks;
};

[[nodiscard]] inline Frame make_frame(const ByteVector& content) {
    Frame frame;
    frame.bytes.resize(codec::frame_bound(content.size()));
    frame.blocks.resize(codec::block_count(content.size()));
    frame.bytes.resize(codec::encode_frame(content, frame.bytes, frame.blocks));
    return frame;
}

/// Short ones, and those around the borders of blocks up to four.
[[nodiscard]] inline std::vector<std::size_t> telling_lengths() {
    std::vector<std::size_t> lengths;
    for (std::size_t i = 1; i < 600; i += i < 40 || (i > 250 && i < 265) ? 1 : 23) lengths.push_back(i);
    for (std::size_t blocks = 1; blocks <= 4; ++blocks)
        for (std::size_t i = 0; i < 11; ++i)
            lengths.push_back(blocks * static_cast<std::size_t>(codec::k_block_bytes) + i - 5);
    lengths.push_back(codec::k_block_bytes + 255);
    lengths.push_back(codec::k_block_bytes + 256);
    return lengths;
}

/// Constant, of two values, uneven, of all values, normally distributed, random.
[[nodiscard]] inline std::vector<ByteVector> contents_of(std::size_t length) {
    std::vector<ByteVector> contents = {ByteVector(length, std::byte{0x5A}), random_bytes(length, length),
                                        normal_e4m3(length, length), halving_bytes(length, 64, length)};
    auto two = random_bytes(length, length + 1);
    for (auto& byte : two) byte = (byte & std::byte{1}) == std::byte{0} ? std::byte{0} : std::byte{255};
    contents.push_back(std::move(two));
    auto uneven = random_bytes(length, length + 2); // all 256 values, one of them most of the time
    for (std::size_t i = 0; i < length; ++i)
        if (i % 8 != 0) uneven[i] = std::byte{77};
    contents.push_back(std::move(uneven));
    return contents;
}

} // namespace gpu_sleep::test
