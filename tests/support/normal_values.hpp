// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Normally distributed values, for those who make contents of many.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace gpu_sleep::test {

/// Normally distributed values by the polar method: those of libstdc++'s std::normal_distribution, which with
/// some compilers takes a long double's logarithm of the generator's range for each of them.
class NormalValues {
public:
    explicit NormalValues(std::uint64_t seed) : random_(seed) {}

    float next() {
        if (is_spare_) {
            is_spare_ = false;
            return spare_;
        }
        float x = 0, y = 0, square = 0;
        do {
            x = 2 * uniform() - 1;
            y = 2 * uniform() - 1;
            square = x * x + y * y;
        } while (square > 1 || square == 0);
        const float scale = std::sqrt(-2 * std::log(square) / square);
        is_spare_ = true;
        spare_ = x * scale;
        return y * scale;
    }

private:
    /// From 0 to less than 1.
    float uniform() { return std::min(static_cast<float>(random_()) * 0x1p-64F, std::nextafter(1.0F, 0.0F)); }

    std::mt19937_64 random_;
    float spare_ = 0;
    bool is_spare_ = false;
};

} // namespace gpu_sleep::test
