// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernel of the capture programs.

#include "capture_work.hpp"

#include <array>

namespace gpu_sleep::test {
namespace {

void write_noise(const sim_launch*, void** arguments) {
    auto* const to = *static_cast<std::uint64_t**>(arguments[0]);
    const auto count = *static_cast<std::uint64_t*>(arguments[1]);
    const auto seed = *static_cast<std::uint64_t*>(arguments[2]);
    for (std::uint64_t i = 0; i < count; ++i) to[i] = noise_at(seed, i);
}

} // namespace

void register_noise_kernel() {
    constexpr std::array<std::size_t, 3> k_parameters = {8, 8, 8};
    control().register_kernel(k_noise_kernel, write_noise, k_parameters.data(), k_parameters.size());
}

} // namespace gpu_sleep::test
