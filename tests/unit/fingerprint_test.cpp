// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The fingerprint sees every change, and finds blocks of zeros. tests/gpu/fingerprint_test.cpp compares the
// kernel with the function for the host that is tested here.

#include "driver/fingerprint_key.hpp"

#include "support/catch.hpp"
#include "support/fingerprint_key.hpp"

#include <numeric>

using namespace gpu_sleep;
using namespace gpu_sleep::driver;
using namespace test;

namespace {

using Bytes8 = std::vector<std::uint8_t>;

constexpr std::size_t k_block = k_fingerprint_block_bytes;
constexpr std::size_t k_quad = sizeof(Quad);
constexpr std::size_t k_row = k_quad * k_fingerprint_threads;
constexpr std::size_t k_warp_row = k_quad * k_fingerprint_lanes;

const FingerprintKey& key() {
    static const auto value = fixed_key(1);
    return value;
}

Fingerprint of(const std::uint8_t* data, std::size_t bytes, const FingerprintKey& by = key()) {
    const FingerprintBlock block{reinterpret_cast<std::uint64_t>(data), bytes};
    Fingerprint result;
    fingerprint_on_host(by, &block, &result, 1);
    return result;
}

Fingerprint of(const Bytes8& bytes, const FingerprintKey& by = key()) {
    return of(bytes.data(), bytes.size(), by);
}

Bytes8 random_bytes(std::size_t count) {
    const auto words = numbers(count / 8 + 1, 2);
    Bytes8 bytes(count);
    std::memcpy(bytes.data(), words.data(), count);
    return bytes;
}

/// Places in a block: in the first, middle and last row, warp and lane.
std::vector<std::size_t> places() {
    std::vector<std::size_t> found;
    for (const std::size_t row : {0, 1, 64, 127})
        for (const std::size_t warp : {0, 7, 15})
            for (const std::size_t lane : {0, 1, 31})
                found.push_back(row * k_row + warp * k_warp_row + lane * k_quad);
    return found;
}

} // namespace

// The values were computed by another program, in another language, from the definition in
// fingerprint_math.hpp, which says why no change goes unseen: every word of a block and of the key counts.
TEST_CASE("Fingerprint: known answers", "[fingerprint]") {
    struct Answer {
        std::size_t bytes;
        Fingerprint print;
    };
    const Answer answers[] = {
        {0, {{0xC3FD593A5928C0C8, 0xFF9D8CE6C4F54DAF, 0xEC9753B0A6729C22, 0xF9B176ED292AA368}, true}},
        {1, {{0xA084A5CA9ECE8657, 0xECA8BA36F703DE10, 0x87808A09350AC6DA, 0x6A5C3E0A2A61CA05}, false}},
        {16, {{0x127D03F903545285, 0x62CA99FA8FE77BC9, 0x2D69DE3C515D74A8, 0xB06E5086C0E69D3F}, false}},
        {8191, {{0xCB837F8D13641923, 0xE223C15772642A40, 0x2281EC89AE425332, 0xC66C96189A8B6724}, false}},
        {8192, {{0xFFAA7A3B9CFD7969, 0x2FE2AB79E5600926, 0x495D4BCC9B9493C4, 0xC6A7A37D97BB1DDF}, false}},
        {100001, {{0xA116A624ACED3AD1, 0xACDE408C0FC2380D, 0xD2B06D5BDC6F8AB0, 0x8074A0FEC3CB9472}, false}},
        {1048576, {{0x73000137E5C61AEE, 0xC61013A51527C773, 0x218AB325E776B52B, 0x53733A4351AEFCD1}, false}},
    };
    const auto bytes = random_bytes(k_block);
    for (const auto& answer : answers) {
        CAPTURE(answer.bytes);
        CHECK(of(bytes.data(), answer.bytes) == answer.print);
    }
}

TEST_CASE("Fingerprint: where a block lies, and what is outside of it, does not count", "[fingerprint]") {
    const auto bytes = random_bytes(3 * k_row);
    for (const auto length : {std::size_t{1}, std::size_t{15}, std::size_t{17}, std::size_t{39}, k_row - 1,
                              k_row, 2 * k_row + 5}) {
        const auto before = of(bytes.data() + 40, length);
        for (std::size_t shift = 0; shift < 20; ++shift) {
            Bytes8 elsewhere(bytes.size(), static_cast<std::uint8_t>(0xA0 + shift));
            std::copy_n(bytes.begin() + 40, length, elsewhere.begin() + static_cast<std::ptrdiff_t>(shift));
            CHECK(of(elsewhere.data() + shift, length) == before);
        }
    }
}

TEST_CASE("Fingerprint: a block is zero if all of its bytes are, and none outside counts", "[fingerprint]") {
    for (std::size_t begin = 0; begin < 20; ++begin) {
        for (std::size_t length = 1; length < 40; ++length) {
            Bytes8 bytes(80, 0xFF);
            std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), length, std::uint8_t{0});
            CHECK(of(bytes.data() + begin, length).is_zero);
            for (std::size_t i = 0; i < length; ++i) {
                bytes[begin + i] = static_cast<std::uint8_t>(1U << i % 8);
                CHECK_FALSE(of(bytes.data() + begin, length).is_zero);
                bytes[begin + i] = 0;
            }
        }
    }
}

TEST_CASE("Fingerprint: one bit anywhere makes a whole block not zero", "[fingerprint]") {
    for (const auto length : {k_block, k_block - 1, k_block - k_row, k_block - k_quad - 4}) {
        Bytes8 bytes(length);
        CHECK(of(bytes).is_zero);
        auto at = places();
        at.push_back(length - 1);
        for (const auto place : at) {
            if (place + k_quad > length && place != length - 1) continue;
            for (std::size_t i = place; i < std::min(length, place + k_quad); ++i) {
                bytes[i] = 0x80;
                CHECK_FALSE(of(bytes).is_zero);
                bytes[i] = 0;
            }
        }
    }
}

TEST_CASE("Fingerprint: an empty block is zero", "[fingerprint]") {
    CHECK(of(nullptr, 0).is_zero);
}

TEST_CASE("Fingerprint key: short answers and signals are borne", "[fingerprint]") {
    static std::uint8_t next = 0;
    static int calls = 0;
    next = 0;
    calls = 0;
    const auto made = make_fingerprint_key([](void* to, std::size_t bytes, unsigned) -> ssize_t {
        if (++calls % 2 == 0) {
            errno = EINTR;
            return -1;
        }
        const auto count = std::min<std::size_t>(bytes, 257);
        std::generate_n(static_cast<std::uint8_t*>(to), count, [] { return next++; });
        return static_cast<ssize_t>(count);
    });
    REQUIRE(made);
    std::array<std::uint8_t, sizeof(FingerprintKey)> expected{};
    std::iota(expected.begin(), expected.end(), std::uint8_t{0});
    CHECK(std::memcmp(&*made, expected.data(), expected.size()) == 0);
}

TEST_CASE("Fingerprint key: without random numbers there is none", "[fingerprint]") {
    const auto refused = make_fingerprint_key([](void*, std::size_t, unsigned) -> ssize_t {
        errno = ENOSYS;
        return -1;
    });
    CHECK(error_of(refused).code == ErrorCode::io_failed);
    const auto empty = make_fingerprint_key([](void*, std::size_t, unsigned) -> ssize_t { return 0; });
    CHECK(error_of(empty).code == ErrorCode::io_failed);
}

TEST_CASE("Fingerprint key: the process has one, and another than the next key", "[fingerprint]") {
    const auto first = process_fingerprint_key();
    const auto second = process_fingerprint_key();
    REQUIRE(first);
    REQUIRE(second);
    CHECK(*first == *second);
    const auto other = need(make_fingerprint_key());
    CHECK(std::memcmp(*first, &other, sizeof other) != 0);
}
