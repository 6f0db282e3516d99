// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fingerprint sees every change.

#include "driver/kernels/fingerprint.hpp"
#include "driver/kernels/fingerprint_math.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

using namespace gpu_sleep::driver;

namespace {

Fingerprint of(const std::uint8_t* data, std::size_t bytes) {
    const FingerprintBlock block{reinterpret_cast<std::uint64_t>(data), bytes};
    Fingerprint result;
    fingerprint_on_host(&block, &result, 1);
    return result;
}

std::vector<std::uint8_t> random_bytes(std::size_t count) {
    std::mt19937 random(11);
    std::vector<std::uint8_t> bytes(count);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    return bytes;
}

} // namespace

TEST_CASE("Fingerprint: every single flipped bit is seen", "[fingerprint]") {
    auto bytes = random_bytes(512);
    const auto before = of(bytes.data(), bytes.size());
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
        CHECK_FALSE(of(bytes.data(), bytes.size()) == before);
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    }
    CHECK(of(bytes.data(), bytes.size()) == before);
}

TEST_CASE("Fingerprint: words that trade places are seen", "[fingerprint]") {
    auto bytes = random_bytes(4096);
    const auto before = of(bytes.data(), bytes.size());
    for (std::size_t i = 0; i < 16; ++i) std::swap(bytes[i], bytes[1024 + i]);
    CHECK_FALSE(of(bytes.data(), bytes.size()) == before);
}

TEST_CASE("Fingerprint: bytes outside a block do not count, at any alignment", "[fingerprint]") {
    auto bytes = random_bytes(256);
    for (std::size_t begin = 0; begin < 20; ++begin) {
        for (std::size_t length = 1; length < 40; ++length) {
            const auto before = of(bytes.data() + begin, length);
            auto other = bytes;
            for (std::size_t i = 0; i < other.size(); ++i)
                if (i < begin || i >= begin + length) other[i] ^= 0xFF;
            // The same alignment in the copy: fingerprints are compared at one address.
            std::vector<std::uint8_t> aligned(bytes.size() + 16);
            const auto shift = (reinterpret_cast<std::uintptr_t>(bytes.data()) & 15) + 16 -
                               (reinterpret_cast<std::uintptr_t>(aligned.data()) & 15);
            std::copy(other.begin(), other.end() - 16,
                      aligned.begin() + static_cast<std::ptrdiff_t>(shift % 16));
            CHECK(of(aligned.data() + shift % 16 + begin, length) == before);
        }
    }
}

TEST_CASE("Fingerprint: the kernel's masking keeps just the bytes asked for", "[fingerprint]") {
    const Word full{0x0807060504030201, 0x100F0E0D0C0B0A09};
    for (unsigned begin = 0; begin < 16; ++begin) {
        for (unsigned end = begin + 1; end <= 16; ++end) {
            const auto word = keep_bytes(full, begin, end);
            for (unsigned i = 0; i < 16; ++i) {
                const auto half = i < 8 ? word.first : word.second;
                const auto byte = half >> (8 * (i % 8)) & 0xFF;
                CHECK(byte == (i >= begin && i < end ? i + 1 : 0));
            }
        }
    }
}
