// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the C++ programs share: a digest of their results, and options. Nothing here knows of sleeping, or of
// the rest of the tree: these programs are ordinary ones.

#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

/// One number for all bytes, another one whenever one byte is another. Source: FNV-1a, with 64 bits.
class Digest {
public:
    void add(const void* data, std::size_t size) {
        const auto* const bytes = static_cast<const unsigned char*>(data);
        for (std::size_t i = 0; i < size; ++i) state_ = (state_ ^ bytes[i]) * 0x100000001B3U;
    }

    [[nodiscard]] std::string finish() const {
        char text[17] = {};
        std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
        return text;
    }

private:
    std::uint64_t state_ = 0xCBF29CE484222325U;
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

/// How long a step takes at least.
inline std::chrono::duration<double> shortest_step(const ProgramOptions& options) {
    return std::chrono::duration<double>(options.seconds / options.steps);
}

/// Runs `step(number)` for every step, with heartbeats, none faster than the options ask for.
template <class Step>
void run_paced(const ProgramOptions& options, Step&& step) {
    const auto shortest = shortest_step(options);
    for (int i = 0; i < options.steps; ++i) {
        const auto start = std::chrono::steady_clock::now();
        std::fprintf(stderr, "step %d\n", i);
        step(i);
        std::this_thread::sleep_until(
            start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(shortest));
    }
}

/// Does so with `program`, whose digest it prints in the end. Returns the exit status.
template <class Program>
int run(const ProgramOptions& options, Program&& program) {
    run_paced(options, [&](int number) { program.step(number); });
    std::printf("%s\n", program.digest().c_str());
    return 0;
}
