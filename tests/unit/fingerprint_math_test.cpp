// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The arithmetic of the fingerprint. Its bound, with words of three bits: over all keys, so exactly.

#include "driver/kernels/fingerprint_math.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep::driver;

namespace {

/// A number of so few bits.
template <unsigned bits>
class Small {
public:
    constexpr Small(unsigned value) : value_(value % (1U << bits)) {}
    constexpr operator unsigned() const { return value_; }

private:
    unsigned value_;
};

constexpr unsigned k_bits = 3;
constexpr unsigned k_values = 1U << k_bits;
using Tiny = Small<k_bits>;

unsigned nh_pair(unsigned first, unsigned second, unsigned first_key, unsigned second_key) {
    return nh<Small<2 * k_bits>, Tiny>(first, second, first_key, second_key);
}

} // namespace

TEST_CASE("Fingerprint: two pairs of words differ by any one number for few keys alone", "[fingerprint]") {
    // Of k_values^2 keys at most k_values: a share of 2^-w.
    std::size_t most = 0;
    for (unsigned pair = 0; pair < k_values * k_values; ++pair) {
        for (unsigned other = 0; other < k_values * k_values; ++other) {
            if (pair == other) continue;
            std::array<std::size_t, k_values * k_values> counts{};
            for (unsigned key = 0; key < k_values * k_values; ++key) {
                const auto a = nh_pair(pair % k_values, pair / k_values, key % k_values, key / k_values);
                const auto b = nh_pair(other % k_values, other / k_values, key % k_values, key / k_values);
                ++counts[(a - b) % counts.size()];
            }
            most = std::max(most, *std::max_element(counts.begin(), counts.end()));
        }
    }
    CHECK(most == k_values);
}

TEST_CASE("Fingerprint: products and sums are taken in full width", "[fingerprint]") {
    constexpr auto k_all = ~std::uint64_t{0};
    const std::uint64_t words[] = {k_all, k_all, k_all, k_all};
    const std::uint64_t zeros[6] = {};
    auto sum = group_part(words, zeros);
    std::uint64_t stored[4] = {};
    gpu_sleep::driver::store(sum, stored);
    // 2 (2^64 - 1)^2 = 2^129 - 2^66 + 2, of which 2^128 and above are lost.
    CHECK(stored[0] == 2);
    CHECK(stored[1] == 0 - std::uint64_t{4});
    CHECK(stored[2] == stored[0]);
    CHECK(stored[3] == stored[1]);
    add(sum, sum);
    gpu_sleep::driver::store(sum, stored);
    CHECK(stored[0] == 4);
    CHECK(stored[1] == 0 - std::uint64_t{8});
}

TEST_CASE("Fingerprint: the bytes of a quad are cut out of two, and no others", "[fingerprint]") {
    std::array<std::uint8_t, 2 * sizeof(Quad)> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(0xC0 + i);
    std::array<Quad, 2> quads{};
    std::memcpy(quads.data(), bytes.data(), sizeof quads);
    for (unsigned offset = 0; offset < sizeof(Quad); ++offset) {
        for (unsigned count = 1; count <= sizeof(Quad); ++count) {
            std::array<std::uint8_t, sizeof(Quad)> expected{};
            std::copy_n(bytes.begin() + offset, count, expected.begin());
            const auto quad = cut(quads[0], quads[1], offset, count);
            CHECK(std::memcmp(&quad, expected.data(), sizeof quad) == 0);
        }
    }
}
