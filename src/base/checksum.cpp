// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// XXH64, in the names of its specification: four lanes, then what is left, then the avalanche.

#include "base/checksum.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace gpu_sleep {
namespace {

constexpr std::uint64_t k_prime_1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t k_prime_2 = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t k_prime_3 = 0x165667B19E3779F9;
constexpr std::uint64_t k_prime_4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t k_prime_5 = 0x27D4EB2F165667C5;

template <class T>
std::uint64_t take(std::span<const std::byte>& bytes) noexcept {
    static_assert(std::endian::native == std::endian::little, "a big-endian host must swap here");
    T value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    bytes = bytes.subspan(sizeof(value));
    return value;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t input) noexcept {
    return std::rotl(lane + input * k_prime_2, 31) * k_prime_1;
}

/// Consumes all whole stripes of 32 bytes.
std::uint64_t converge(std::span<const std::byte>& bytes) noexcept {
    std::array<std::uint64_t, 4> lanes = {k_prime_1 + k_prime_2, k_prime_2, 0, 0 - k_prime_1};
    while (bytes.size() >= 32)
        for (auto& lane : lanes) lane = round(lane, take<std::uint64_t>(bytes));
    auto hash =
        std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const auto lane : lanes) hash = (hash ^ round(0, lane)) * k_prime_1 + k_prime_4;
    return hash;
}

} // namespace

std::uint64_t xxh64(std::span<const std::byte> bytes) noexcept {
    const std::uint64_t length = bytes.size();
    auto hash = (length >= 32 ? converge(bytes) : k_prime_5) + length;
    while (bytes.size() >= 8)
        hash = std::rotl(hash ^ round(0, take<std::uint64_t>(bytes)), 27) * k_prime_1 + k_prime_4;
    if (bytes.size() >= 4)
        hash = std::rotl(hash ^ (take<std::uint32_t>(bytes) * k_prime_1), 23) * k_prime_2 + k_prime_3;
    while (!bytes.empty()) hash = std::rotl(hash ^ (take<std::uint8_t>(bytes) * k_prime_5), 11) * k_prime_1;
    hash = (hash ^ (hash >> 33)) * k_prime_2;
    hash = (hash ^ (hash >> 29)) * k_prime_3;
    return hash ^ (hash >> 32);
}

} // namespace gpu_sleep
