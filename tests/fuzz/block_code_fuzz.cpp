// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds arbitrary bytes to the decoder of blocks, and compares contents with what is decoded after encoding
// them, by a plan that need not suit them.

#include "codec/block_code.hpp"

#include "support/block_encoder.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

using namespace gpu_sleep;

namespace {

constexpr std::size_t k_head = 4;

void require(bool condition) {
    if (!condition) __builtin_trap();
}

codec::BlockClass class_of(std::byte byte) {
    return codec::coded_class(std::to_integer<unsigned>(byte) % codec::k_coded_classes);
}

void try_block(std::span<const std::byte> bytes) {
    const auto block_class = class_of(bytes[1]);
    std::vector<std::byte> content((std::to_integer<std::size_t>(bytes[2]) % 8 + 1) * codec::k_coded_unit);
    std::vector<std::byte> coded(bytes.begin() + k_head, bytes.end());
    static_cast<void>(codec::decode_block(block_class, coded, content));
    // With a head that is right, so that what follows it is read, and bytes that are missing.
    const codec::BlockLayout layout(block_class, static_cast<std::uint32_t>(content.size()));
    coded.resize(
        std::max<std::size_t>(coded.size(), layout.escapes + std::to_integer<std::size_t>(bytes[3])));
    codec::BlockHead head;
    std::memcpy(&head, coded.data(), sizeof head);
    head.version = codec::k_block_version;
    head.content_bytes = static_cast<std::uint32_t>(content.size());
    head.plan.block_class = block_class;
    head.plan.coded_bytes = static_cast<std::uint32_t>(coded.size());
    std::memcpy(coded.data(), &head, sizeof head);
    static_cast<void>(codec::decode_block(block_class, coded, content));
}

/// Contents of any kind come back, or do not fit.
void try_content(std::span<const std::byte> bytes) {
    std::vector<std::byte> content(bytes.begin() + k_head, bytes.end());
    content.resize((content.size() / codec::k_coded_unit + 1) * codec::k_coded_unit, bytes[0]);
    if (content.size() > codec::k_largest_block) return;
    auto plan = test::measure_block(content);
    const bool is_measured = bytes[2] == std::byte{0} && plan.block_class != codec::BlockClass::raw;
    if (!is_measured) plan.block_class = class_of(bytes[1]);
    std::vector<std::byte> coded(is_measured ? plan.coded_bytes
                                             : std::to_integer<std::size_t>(bytes[3]) * content.size() / 128);
    const auto used = test::encode_block(plan, content, coded);
    if (is_measured) require(used == plan.coded_bytes);
    if (used == 0) return;
    std::vector<std::byte> decoded(content.size());
    require(codec::decode_block(plan.block_class, std::span(coded).first(used), decoded));
    require(decoded == content);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    if (bytes.size() < k_head) return 0;
    if (data[0] % 2 == 0)
        try_block(bytes);
    else
        try_content(bytes);
    return 0;
}
