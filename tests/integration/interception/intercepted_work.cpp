// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernel of the capture programs, and what their memory holds.

#include "intercepted_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace gpu_sleep::test {
namespace {

constexpr std::size_t k_piece = std::size_t{16} << 20;

class Hash {
public:
    void add(const std::vector<std::uint64_t>& contents) {
        for (const auto word : contents) value_ = (value_ ^ word) * 0x100000001B3U;
    }
    [[nodiscard]] std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 0xCBF29CE484222325U;
};

Result<std::uint64_t> hash_at(CUdeviceptr address, std::size_t bytes) {
    Hash hash;
    thread_local std::vector<std::uint64_t> contents; // new pages for each call are slow
    for (std::size_t at = 0; at < bytes; at += k_piece) {
        contents.resize(std::min(k_piece, bytes - at) / sizeof(std::uint64_t));
        GPU_SLEEP_TEST_CALL(cuMemcpyDtoH, contents.data(), address + at,
                            contents.size() * sizeof(std::uint64_t));
        hash.add(contents);
    }
    return hash.value();
}

Result<std::string> hash_of_array(const Memory& which) {
    std::vector<std::uint64_t> contents(which.bytes / sizeof(std::uint64_t));
    GPU_SLEEP_TEST_CALL(cuMemcpyAtoH, contents.data(), which.array, 0, which.bytes);
    Hash hash;
    hash.add(contents);
    return fmt::format("{:016x}", hash.value());
}

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

Result<void> fill_array(const Memory& which, std::uint64_t seed) {
    std::vector<std::uint64_t> contents(which.bytes / sizeof(std::uint64_t));
    for (std::size_t i = 0; i < contents.size(); ++i) contents[i] = noise_at(seed, i);
    GPU_SLEEP_TEST_CALL(cuMemcpyHtoA, which.array, 0, contents.data(), which.bytes);
    return {};
}

Result<std::string> hash_of_contents(const Memory& which) {
    if (which.array) return hash_of_array(which);
    const auto hash = hash_at(which.address, which.bytes);
    if (!hash) return hash.error();
    if (which.second.begin != 0) {
        const auto other = hash_at(which.second.begin, which.bytes);
        if (!other) return other.error();
        if (*other != *hash)
            return make_error(ErrorCode::internal, "the second mapping shows something else");
    }
    return fmt::format("{:016x}", *hash);
}

} // namespace gpu_sleep::test
