// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernel of the capture programs, and what their memory holds.

#include "intercepted_work.hpp"

#include <fmt/format.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <memory>

namespace gpu_sleep::test {
namespace {

constexpr std::size_t k_piece = std::size_t{16} << 20;
constexpr std::size_t k_large_page = std::size_t{2} << 20;

class Hash {
public:
    void add(const std::uint64_t* words, std::size_t count) {
        for (const auto word : std::span(words, count)) value_ = (value_ ^ word) * 0x100000001B3U;
    }
    [[nodiscard]] std::uint64_t value() const { return value_; }

private:
    std::uint64_t value_ = 0xCBF29CE484222325U;
};

/// k_piece bytes of this thread, in large pages: new small ones are slow in some virtual machines.
void* buffer() {
    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };
    thread_local const std::unique_ptr<void, Free> memory = [] {
        void* const taken = std::aligned_alloc(k_large_page, k_piece);
        ::madvise(taken, k_piece, MADV_HUGEPAGE);
        return std::unique_ptr<void, Free>(taken);
    }();
    return memory.get();
}

Result<std::uint64_t> hash_at(CUdeviceptr address, std::size_t bytes) {
    Hash hash;
    auto* const contents = static_cast<std::uint64_t*>(buffer());
    for (std::size_t at = 0; at < bytes; at += k_piece) {
        const auto piece = std::min(k_piece, bytes - at);
        GPU_SLEEP_TEST_CALL(cuMemcpyDtoH, contents, address + at, piece);
        hash.add(contents, piece / sizeof *contents);
    }
    return hash.value();
}

Result<std::string> hash_of_array(const Memory& which) {
    std::vector<std::uint64_t> contents(which.bytes / sizeof(std::uint64_t));
    GPU_SLEEP_TEST_CALL(cuMemcpyAtoH, contents.data(), which.array, 0, which.bytes);
    Hash hash;
    hash.add(contents.data(), contents.size());
    return fmt::format("{:016x}", hash.value());
}

void write_noise(const sim_launch* launch, void** arguments) {
    const auto address = *static_cast<std::uint64_t*>(arguments[0]);
    const auto count = *static_cast<std::uint64_t*>(arguments[1]);
    auto* const to = static_cast<std::uint64_t*>(
        GPU_SLEEP_TEST_CONTROL(sim_require_access)(launch, address, count * sizeof count, 1));
    const auto seed = *static_cast<std::uint64_t*>(arguments[2]);
    for (std::uint64_t i = 0; i < count; ++i) to[i] = noise_at(seed, i);
    GPU_SLEEP_TEST_CONTROL(sim_require_access)(launch, address, count * sizeof count, 1); // still
}

} // namespace

void register_noise_kernel() {
    constexpr std::array<std::size_t, 3> k_parameters = {8, 8, 8};
    GPU_SLEEP_TEST_CONTROL(sim_register_kernel)
    (k_noise_kernel, write_noise, k_parameters.data(), k_parameters.size());
}

Result<void> fill_array(const Memory& which, std::uint64_t seed) {
    std::vector<std::uint64_t> contents(which.bytes / sizeof(std::uint64_t));
    for (std::size_t i = 0; i < contents.size(); ++i) contents[i] = noise_at(seed, i);
    GPU_SLEEP_TEST_CALL(cuMemcpyHtoA, which.array, 0, contents.data(), which.bytes);
    return {};
}

Result<std::string> hash_of_contents(const Memory& which) {
    if (which.array) return hash_of_array(which);
    const auto hash = GPU_SLEEP_TRY(hash_at(which.address, which.bytes));
    if (which.second.begin != 0) {
        const auto other = GPU_SLEEP_TRY(hash_at(which.second.begin, which.bytes));
        if (other != hash) return make_error(ErrorCode::internal, "the second mapping shows something else");
    }
    return fmt::format("{:016x}", hash);
}

} // namespace gpu_sleep::test
