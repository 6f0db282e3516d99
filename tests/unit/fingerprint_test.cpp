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
using test::fixed_key;
using test::numbers;

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

bool same_words(const Fingerprint& a, const Fingerprint& b) {
    return std::equal(std::begin(a.words), std::end(a.words), std::begin(b.words));
}

/// Checks that no two of the changes of `bytes` have the same words, and that none has those of `bytes`.
void check_all_differ(const Bytes8& bytes, const std::vector<std::function<void(Bytes8&)>>& changes) {
    std::vector<std::array<std::uint64_t, 4>> seen;
    const auto note = [&](const Bytes8& contents) {
        const auto print = of(contents);
        seen.push_back(std::to_array(print.words));
    };
    note(bytes);
    for (const auto& change : changes) {
        auto changed = bytes;
        change(changed);
        note(changed);
    }
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

template <class T>
T get(const Bytes8& bytes, std::size_t at) {
    T value;
    std::memcpy(&value, &bytes[at], sizeof value);
    return value;
}

template <class T>
void put(Bytes8& bytes, std::size_t at, T value) {
    std::memcpy(&bytes[at], &value, sizeof value);
}

template <class T>
void add_to(Bytes8& bytes, std::size_t at, T value) {
    put(bytes, at, static_cast<T>(get<T>(bytes, at) + value));
}

void swap_parts(Bytes8& bytes, std::size_t a, std::size_t b, std::size_t size) {
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a),
                     bytes.begin() + static_cast<std::ptrdiff_t>(a + size),
                     bytes.begin() + static_cast<std::ptrdiff_t>(b));
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
// fingerprint_math.hpp.
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

TEST_CASE("Fingerprint: parts that trade places are seen", "[fingerprint]") {
    std::vector<std::function<void(Bytes8&)>> changes;
    // Numbers of 2, 4 and 8 bytes and quads, by each power of two of a distance.
    for (const std::size_t size : {2, 4, 8, 16})
        for (auto distance = size; distance < k_block; distance *= 2)
            changes.emplace_back([=](Bytes8& bytes) { swap_parts(bytes, 0, distance, size); });
    // Warps' parts of a row, rows, and halves of the block.
    for (const auto size : {k_warp_row, k_row, k_block / 2})
        for (auto distance = size; distance < k_block; distance *= 2)
            changes.emplace_back([=](Bytes8& bytes) { swap_parts(bytes, 0, distance, size); });
    // All that two threads have, and all that two warps have.
    for (const auto size : {k_quad, k_warp_row})
        for (auto distance = size; distance < k_row; distance *= 2)
            changes.emplace_back([=](Bytes8& bytes) {
                for (std::size_t row = 0; row < k_block; row += k_row)
                    swap_parts(bytes, row, row + distance, size);
            });
    check_all_differ(random_bytes(k_block), changes);
}

TEST_CASE("Fingerprint: changes that cancel in a sum are seen", "[fingerprint]") {
    std::vector<std::function<void(Bytes8&)>> changes;
    const auto add_pair = [&]<class T>(T first, T second) {
        for (const std::size_t start : {std::size_t{0}, k_block / 2 + 3 * k_quad})
            for (auto distance = sizeof(T); start + distance < k_block; distance *= 2)
                changes.emplace_back([=](Bytes8& bytes) {
                    add_to<T>(bytes, start, first);
                    add_to<T>(bytes, start + distance, second);
                });
    };
    add_pair(std::uint32_t{1}, ~std::uint32_t{0});
    add_pair(std::uint32_t{1} << 31, std::uint32_t{1} << 31);
    add_pair(std::uint64_t{1}, ~std::uint64_t{0});
    add_pair(std::uint64_t{1} << 63, std::uint64_t{1} << 63);
    add_pair(std::uint16_t{1}, std::uint16_t{0xFFFF});
    for (const auto& contents : {random_bytes(k_block), Bytes8(k_block)}) {
        const auto before = of(contents);
        for (const auto& change : changes) {
            auto changed = contents;
            change(changed);
            CHECK_FALSE(same_words(of(changed), before));
        }
    }
}

TEST_CASE("Fingerprint: every word of the key counts", "[fingerprint]") {
    const auto bytes = random_bytes(k_block);
    const auto before = of(bytes);
    auto other = key();
    auto* const words = reinterpret_cast<std::byte*>(&other);
    for (std::size_t at = 0; at < sizeof other; at += 4) {
        words[at] ^= std::byte{1};
        CHECK_FALSE(same_words(of(bytes, other), before));
        words[at] ^= std::byte{1};
    }
    CHECK(of(bytes, other) == before);
    CHECK_FALSE(same_words(of(bytes, fixed_key(2)), before));
    CHECK_FALSE(same_words(of(Bytes8(k_block), fixed_key(2)), of(Bytes8(k_block))));
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
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::io_failed);
    const auto empty = make_fingerprint_key([](void*, std::size_t, unsigned) -> ssize_t { return 0; });
    REQUIRE_FALSE(empty);
    CHECK(empty.error().code == ErrorCode::io_failed);
}

TEST_CASE("Fingerprint key: the process has one, and another than the next key", "[fingerprint]") {
    const auto first = process_fingerprint_key();
    const auto second = process_fingerprint_key();
    REQUIRE(first);
    REQUIRE(second);
    CHECK(*first == *second);
    const auto other = make_fingerprint_key();
    REQUIRE(other);
    CHECK(std::memcmp(*first, &*other, sizeof *other) != 0);
}
