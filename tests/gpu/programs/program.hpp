// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the C++ programs share: SHA-256 over their results, and options. Nothing here knows of sleeping, or of
// the rest of the tree: these programs are ordinary ones.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

/// Source: FIPS 180-4, sections 5 and 6.2.
class Sha256 {
public:
    void add(const void* data, std::size_t size) {
        const auto* bytes = static_cast<const unsigned char*>(data);
        length_ += size;
        while (size > 0) {
            const auto part = std::min(size, block_.size() - filled_);
            std::memcpy(block_.data() + filled_, bytes, part);
            filled_ += part;
            bytes += part;
            size -= part;
            if (filled_ == block_.size()) compress();
        }
    }

    std::string finish() {
        const std::uint64_t bits = length_ * 8;
        const unsigned char one = 0x80, zero = 0;
        add(&one, 1);
        while (filled_ != 56) add(&zero, 1);
        for (int shift = 56; shift >= 0; shift -= 8) {
            const auto byte = static_cast<unsigned char>(bits >> shift);
            add(&byte, 1);
        }
        char text[65] = {};
        for (std::size_t i = 0; i < 8; ++i) std::snprintf(text + 8 * i, 9, "%08x", state_[i]);
        return text;
    }

private:
    void compress() {
        static constexpr std::array<std::uint32_t, 64> k = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        std::array<std::uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i)
            w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 |
                   std::uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
        for (std::size_t i = 16; i < 64; ++i)
            w[i] = w[i - 16] + w[i - 7] +
                   (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3) +
                   (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
        auto s = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const auto sum_e = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
            const auto first = s[7] + sum_e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            const auto sum_a = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
            const auto second = sum_a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
        }
        for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
        filled_ = 0;
    }

    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<unsigned char, 64> block_{};
    std::size_t filled_ = 0;
    std::uint64_t length_ = 0;
};

/// --steps, --seconds and --scale, as in program.py.
struct ProgramOptions {
    int steps = 60;
    double seconds = 0;
    double scale = 1;

    ProgramOptions(int count, char** words) {
        for (int i = 1; i + 1 < count; i += 2) {
            const std::string name = words[i];
            if (name == "--steps") steps = std::atoi(words[i + 1]);
            if (name == "--seconds") seconds = std::atof(words[i + 1]);
            if (name == "--scale") scale = std::atof(words[i + 1]);
        }
    }
};

/// Runs `step(number)` for every step, with heartbeats, none faster than the options ask for.
template <class Step>
void run_paced(const ProgramOptions& options, Step&& step) {
    const std::chrono::duration<double> shortest(options.seconds / options.steps);
    for (int i = 0; i < options.steps; ++i) {
        const auto start = std::chrono::steady_clock::now();
        std::fprintf(stderr, "step %d\n", i);
        step(i);
        std::this_thread::sleep_until(
            start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(shortest));
    }
}
