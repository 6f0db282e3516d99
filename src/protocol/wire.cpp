// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checksum of frames. They are small: a bit at a time is quick enough, and needs no table.

#include "protocol/wire.hpp"

namespace gpu_sleep::protocol {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
    constexpr std::uint32_t k_polynomial = 0x82F63B78;
    std::uint32_t crc = ~before;
    for (const auto byte : bytes) {
        crc ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (k_polynomial & (0U - (crc & 1)));
    }
    return ~crc;
}

} // namespace gpu_sleep::protocol
