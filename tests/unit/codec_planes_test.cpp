// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Byte planes there and back.

#include "codec/chunk.hpp"
#include "support/catch.hpp"
#include "support/weights.hpp"

namespace gpu_sleep::codec {
namespace {

using test::ByteVector;

TEST_CASE("Planes: joining undoes splitting, for every number of values", "[codec]") {
    for (const std::size_t width : {2, 4})
        for (std::size_t count = 1; count < 100; ++count) {
            const auto values = test::random_bytes(count * width, count);
            ByteVector planes(values.size());
            split_planes(static_cast<unsigned>(width), values, planes);
            std::array<const std::byte*, k_widest> places{};
            for (std::size_t p = 0; p < width; ++p) places[p] = &planes[p * count];
            ByteVector joined(values.size());
            join_planes(static_cast<unsigned>(width), places.data(), joined);
            CHECK(joined == values);
        }
}

TEST_CASE("Planes: the exponent of every value is its byte of the last plane", "[codec]") {
    constexpr std::size_t k_count = 1001;
    const auto bf16 = test::normal_bf16(k_count);
    ByteVector planes(bf16.size());
    split_planes(2, bf16, planes);
    const auto fp32 = test::normal_fp32(k_count);
    ByteVector wide_planes(fp32.size());
    split_planes(4, fp32, wide_planes);
    for (std::size_t i = 0; i < k_count; ++i) {
        std::uint16_t narrow = 0;
        std::uint32_t wide = 0;
        std::memcpy(&narrow, &bf16[2 * i], 2);
        std::memcpy(&wide, &fp32[4 * i], 4);
        CHECK(planes[k_count + i] == static_cast<std::byte>(narrow >> 7 & 0xFF));
        CHECK(planes[i] == static_cast<std::byte>((narrow << 1 | narrow >> 15) & 0xFF));
        CHECK(wide_planes[3 * k_count + i] == static_cast<std::byte>(wide >> 23 & 0xFF));
        CHECK(wide_planes[i] == static_cast<std::byte>((wide << 1 | wide >> 31) & 0xFF));
    }
}

} // namespace
} // namespace gpu_sleep::codec
